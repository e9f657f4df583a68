"""HTTPPRM: a process reward model behind `vllm serve MODEL --runner pooling`.

Texts travel as token ids of the PRM's own tokenizer: a server that tokenises for itself would see
special tokens in them. Before the first step the server shows that it scores as it is asked to: it
answers every text even when it pools in another way, then with no rows, or with others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pydantic import SecretStr

from kvrescue.engine.checkpoint import resolve
from kvrescue.engine.loading import load_tokenizer
from kvrescue.errors import ConfigError, ScorerError, nearest
from kvrescue.scorers import http_client
from kvrescue.scorers.base import Scorer
from kvrescue.scorers.http_client import Client
from kvrescue.scorers.prm_text import PRMText, Text
from kvrescue.scorers.rows import positive
from kvrescue.scorers.specs import SYSTEM, Convention, HTTPPRMSpec
from kvrescue.types import Candidate, Context

__all__ = ["PROBES", "HTTPPRM"]

_DEFAULT_CONTEXT: Final = 4096
PROBES: Final = (
    ("1 + 2 = 3.\n\n",),
    ("1 + 2 = 3.\n\n", "So x is 5.\n\n", "Hence 7 apples.\n\n"),
)
"""Steps of the texts that a server is tried with: another tag than ours is hardly in one of them
once and in the other three times."""


class HTTPPRM(Scorer):
    """Scores candidate steps on a vLLM server. Arguments as in `HTTPPRMSpec`.

    The candidates of one call are one request. Raises (when built) ConfigError, ModelLoadError
    (tokenizer) and ScorerError: no such server, or one that scores otherwise.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        tokenizer: str | None = None,
        convention: Convention = "step_tag",
        step_tag: str = "<extra_0>",
        system: str | None = SYSTEM,
        max_context: int | None = None,
        api_key: SecretStr | str | None = None,
        api_key_env: str = "VLLM_API_KEY",
        timeout: float = 120.0,
        retries: int = 4,
        backoff: float = 0.5,
        concurrency: int = 8,
    ) -> None:
        checked = HTTPPRMSpec(
            url=url,
            model=model,
            tokenizer=tokenizer,
            convention=convention,
            step_tag=step_tag,
            system=system,
            max_context=max_context,
            api_key=api_key,
            api_key_env=api_key_env,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            concurrency=concurrency,
        )
        found, _ = load_tokenizer(resolve(tokenizer or model))
        self.text = PRMText(
            tokenizer or model, found, convention=convention, step_tag=step_tag, system=system
        )
        self.client = Client(
            checked.url,
            key=http_client.api_key(checked.api_key, api_key_env),
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            concurrency=concurrency,
        )
        self.model, self.name = model, f"{model} at {self.client.url}"
        self._advice = f"start the server as `{self._command()}`"
        self.max_context = http_client.apart(self._meet(max_context))

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        if not candidates:
            return []
        texts = self.text.texts(context, candidates, self.max_context)
        unique = list(dict.fromkeys(texts))
        value = dict(zip(unique, await self._ask(unique), strict=True))
        return [value[text] for text in texts]

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def _command(self) -> str:
        pooler: dict[str, Any] = {"pooling_type": "ALL"}
        if self.text.tag is not None:
            pooler = {"pooling_type": "STEP", "step_tag_id": self.text.tag}
        return f"vllm serve MODEL --runner pooling --pooler-config '{json.dumps(pooler)}'"

    # -- the server -----------------------------------------------------------------------------

    async def _meet(self, max_context: int | None) -> int:
        """The context to use, of a server that has the model and scores as it is asked to."""
        limit = await self._limit()
        if max_context is not None and limit is not None and max_context > limit:
            raise ConfigError(
                f"max_context = {max_context} exceeds the {limit} tokens of {self.name}; use at "
                f"most {limit}"
            )
        await self._ask([self.text.text("What is x?", steps) for steps in PROBES])
        return max_context or limit or _DEFAULT_CONTEXT

    async def _limit(self) -> int | None:
        """Tokens that the server takes, where it says."""
        listed = await self.client.ask("GET", "/v1/models")
        entries = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(entries, list):
            raise ScorerError(f"{self.client.url}/v1/models lists no models: is it a vLLM server?")
        models = {str(e.get("id")): e for e in entries if isinstance(e, dict)}
        if self.model not in models:
            raise ConfigError(
                f"model = {self.model!r} is not served at {self.client.url}"
                f"{nearest(self.model, models)}"
            )
        limit = models[self.model].get("max_model_len")
        return limit if isinstance(limit, int) and limit > 1 else None

    async def _ask(self, texts: Sequence[Text]) -> list[float]:
        """Scores of texts, one request."""
        body = {
            "model": self.model,
            "input": [list(text.ids) for text in texts],
            "task": "token_classify",
            "use_activation": True,
            "encoding_format": "float",
        }
        answer = await self.client.ask("POST", "/pooling", body, self._advice)
        return [
            positive(
                rows,
                text.steps if self.text.tag is not None else len(text.ids),
                what=self.name,
                advice=self._advice,
            )
            for text, rows in zip(texts, self._sorted(answer, len(texts)), strict=True)
        ]

    def _sorted(self, answer: Any, count: int) -> list[object]:
        """What was returned for each text, in their order."""
        items = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ScorerError(f"{self.name}: the answer holds no list `data`: is it a vLLM server?")
        indices = [item.get("index") for item in items]
        if len(items) != count or any(i not in indices for i in range(count)):
            raise ScorerError(
                f"{self.name}: {count} texts were sent, and the answer is for {indices!r:.60}"
            )
        return [items[indices.index(i)].get("data") for i in range(count)]
