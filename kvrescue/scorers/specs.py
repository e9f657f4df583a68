"""Options of the built-in scorers; importable, and printable, without torch."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import (
    Field,
    SecretStr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from kvrescue.engine.choices import DType, Template
from kvrescue.faults import CONFIG_ERROR
from kvrescue.options import SECRETS
from kvrescue.scorers.base import ScorerSpec

if TYPE_CHECKING:
    from kvrescue.scorers.http_prm import HTTPPRM
    from kvrescue.scorers.likelihood import LikelihoodScorer
    from kvrescue.scorers.qwen_prm import QwenPRM
    from kvrescue.scorers.vllm_prm import VLLMPRM

__all__ = [
    "SYSTEM",
    "Convention",
    "HTTPPRMSpec",
    "LikelihoodSpec",
    "QwenPRMSpec",
    "Reduce",
    "VLLMPRMSpec",
]

Reduce = Literal["mean", "min"]
"""How the tokens' probabilities become one score."""
Convention = Literal["step_tag", "separator"]
"""Where a reward model's score is read."""
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
"""System message of the published PRM's model card."""


def root(url: str) -> str:
    """A server's address without "/" or "/v1" at its end.

    Raises ValueError unless it is scheme, host and perhaps port and path, and nothing else.
    """
    if any(mark in url for mark in "@?#"):
        raise ValueError(
            "give scheme, host and path alone; a key belongs in `api_key` or the environment"
        )
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is none
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def is_key(key: str) -> bool:
    """Whether a key can stand in a header."""
    return bool(key) and key.isascii() and key.isprintable() and " " not in key


class QwenPRMSpec(ScorerSpec):
    """`kind: qwen_prm` in a configuration; the fields are `QwenPRM`'s arguments."""

    kind: ClassVar[str] = "qwen_prm"

    model: str = Field(min_length=1)
    """Folder, hub name or `tiny/prm`."""
    convention: Convention = "step_tag"
    """Where the score is read: at a step tag (model card) or at the separator (paper, TRL)."""
    step_tag: str = Field(default="<extra_0>", min_length=1)
    """The token that follows every step, with `convention: step_tag`."""
    system: str | None = SYSTEM
    """System message; the model card's unless given."""
    max_context: int | None = Field(default=None, ge=2)
    """Tokens of question and steps; None: the model's limit, at most 4096."""
    device: str | None = None
    """None: CUDA when there is one, else the CPU."""
    dtype: DType = "auto"
    """auto: bfloat16 on CUDA, float32 on the CPU; the head is float32 in any case."""

    def build(self) -> QwenPRM:
        from kvrescue.scorers.qwen_prm import QwenPRM

        return QwenPRM(**{name: getattr(self, name) for name in type(self).model_fields})


class VLLMPRMSpec(ScorerSpec):
    """`kind: vllm_prm` in a configuration; the fields are `VLLMPRM`'s arguments."""

    kind: ClassVar[str] = "vllm_prm"

    model: str = Field(min_length=1)
    """Folder, hub name or `tiny/prm`."""
    convention: Convention = "step_tag"
    """Where the score is read: at a step tag (model card) or at the separator (paper, TRL)."""
    step_tag: str = Field(default="<extra_0>", min_length=1)
    """The token that follows every step, with `convention: step_tag`."""
    system: str | None = SYSTEM
    """System message; the model card's unless given."""
    max_context: int | None = Field(default=None, ge=2)
    """Tokens of question and steps; None: the model's limit, at most 4096."""
    max_live_rows: int = Field(default=128, ge=1)
    """Texts that are scored at once; more wait."""
    prefix_caching: bool = True
    """Compute what texts have in common once. False: as vLLM serves such models over HTTP."""
    kv_cache_bytes: int | None = Field(default=None, ge=1)
    """Memory of the KV cache; None: room for `max_live_rows` full contexts, at most 1 GiB, on the
    CPU, and vLLM's share on CUDA."""
    dtype: DType = "auto"
    """auto: bfloat16 on CUDA, float32 on the CPU; the head is float32 in any case."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """Further fields of vLLM's EngineArgs, such as tensor_parallel_size."""

    def build(self) -> VLLMPRM:
        from kvrescue.scorers.vllm_prm import VLLMPRM

        return VLLMPRM(**{name: getattr(self, name) for name in type(self).model_fields})


class HTTPPRMSpec(ScorerSpec):
    """`kind: http_prm` in a configuration; the fields are `HTTPPRM`'s arguments."""

    kind: ClassVar[str] = "http_prm"

    url: str
    """Where `vllm serve MODEL --runner pooling` listens: http://HOST:8000."""
    model: str = Field(min_length=1)
    """The model's name on the server."""
    tokenizer: str | None = Field(default=None, min_length=1)
    """Folder or hub name of the PRM's own tokenizer; None: `model`."""
    convention: Convention = "step_tag"
    """Where the score is read: at a step tag (model card) or at the separator (paper, TRL)."""
    step_tag: str = Field(default="<extra_0>", min_length=1)
    """The token that follows every step, with `convention: step_tag`."""
    system: str | None = SYSTEM
    """System message; the model card's unless given."""
    max_context: int | None = Field(default=None, ge=2)
    """None: the server's."""
    api_key: SecretStr | None = None
    """Never shown, and left out where the configuration is written down."""
    api_key_env: str = Field(default="VLLM_API_KEY", min_length=1)
    """Environment variable that holds the key where `api_key` is not given."""
    timeout: float = Field(default=120.0, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds that one answer may take."""
    retries: int = Field(default=4, ge=0, le=100)
    """How often a request is repeated when the server cannot be reached, or is busy."""
    backoff: float = Field(default=0.5, ge=0, le=86_400, allow_inf_nan=False)
    """Seconds before the first repetition; doubled each time, at most 30."""
    concurrency: int = Field(default=8, ge=1)
    """Requests at the server at once; each holds the candidates of one step."""

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        try:
            return root(url)
        except ValueError as error:  # told without the value: it may hold a secret
            raise PydanticCustomError(CONFIG_ERROR, "{why}", {"why": str(error)}) from None

    @field_validator("api_key", mode="before")
    @classmethod
    def _hidden(cls, key: object) -> object:
        """Faults are told without the value."""
        if isinstance(key, SecretStr):
            key = key.get_secret_value()
        if key is None:
            return None
        if not isinstance(key, str):
            raise PydanticCustomError(CONFIG_ERROR, "expected a text: put it in quotes")
        if not is_key(key):
            raise PydanticCustomError(
                CONFIG_ERROR, "expected a key of visible ASCII characters, without spaces"
            )
        return key

    @model_serializer(mode="wrap")
    def _without_secret(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if (info.context or {}).get(SECRETS) and self.api_key is not None:
            data["api_key"] = self.api_key.get_secret_value()
        else:
            data.pop("api_key", None)
        return data

    def build(self) -> HTTPPRM:
        from kvrescue.scorers.http_prm import HTTPPRM

        return HTTPPRM(**{name: getattr(self, name) for name in type(self).model_fields})


class LikelihoodSpec(ScorerSpec):
    """`kind: likelihood` in a configuration: the judging model and how to pool its tokens."""

    kind: ClassVar[str] = "likelihood"

    model: str = Field(min_length=1)
    """As for `kind: torch`; weights are shared with a policy of the same model."""
    reduce: Reduce = "mean"
    """`mean`: the geometric mean probability of the step's tokens; `min`: that of the least
    likely."""
    system: str | None = None
    """System message of the chat template."""
    template: Template = "chat"
    """"chat": the question goes through the tokenizer's chat template; "raw": it is encoded as it
    is."""
    max_context: int | None = Field(default=None, ge=2)
    """Tokens of question and steps; None: the model's limit, at most 4096."""
    device: str | None = None
    """None: CUDA when there is one, else the CPU."""
    dtype: DType = "auto"
    """auto: bfloat16 on CUDA, float32 on the CPU."""

    def build(self) -> LikelihoodScorer:
        from kvrescue.policies.torch import TorchPolicy
        from kvrescue.scorers.likelihood import LikelihoodScorer

        options = {n: getattr(self, n) for n in type(self).model_fields if n != "reduce"}
        return LikelihoodScorer(TorchPolicy(**options), reduce=self.reduce)
