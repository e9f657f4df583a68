"""Pooling engines: vLLM as a reward model, in this process; one row of probabilities per place."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from vllm import PoolingParams
from vllm.config import PoolerConfig

from kvrescue.errors import KVRescueError, ModelLoadError, ScorerError
from kvrescue.policies.vllm.driver import EngineDriver
from kvrescue.policies.vllm.options import OWNED
from kvrescue.policies.vllm.refusals import REFUSALS, Refusal, refuse
from kvrescue.policies.vllm.start import common_settings, create_config

__all__ = ["Pooled", "PoolingDriver", "pooling_config"]

_TASK: Final = "token_classify"
_OURS: Final = {
    **OWNED,
    "seed": "scoring draws nothing; leave it out",
    "runner": "leave it out",
    "convert": "leave it out",
    "worker_extension_cls": "leave it out",
    "pooler_config": "write `convention`",
    "enable_prefix_caching": "write `prefix_caching`",
}
_OTHERWISE: Final = {
    "runner": Refusal(
        "runner",
        lambda c: None if c.model_config.runner_type == "pooling" else c.model_config.runner_type,
        "a generating model returns no scores",
        "leave it alone",
        always=True,
    ),
    "pipeline_parallel_size": Refusal(
        "pipeline_parallel_size",
        lambda c: (n := c.parallel_config.pipeline_parallel_size) > 1 and n,
        "the reward head lives on another rank",
        "use tensor_parallel_size instead",
        always=True,
    ),
}
_REFUSALS: Final = tuple(_OTHERWISE.get(r.setting, r) for r in REFUSALS if r.always)


@dataclass(frozen=True, slots=True)
class Pooled:
    """What came of one text."""

    rows: list[list[float]]
    skipped: int
    """Leading tokens without rows: their keys and values were in the prefix cache."""


class PoolingDriver(EngineDriver[Pooled]):
    """Runs texts through a reward model; texts of all problems in flight share its steps.

    `cached`: texts may start from the prefix cache, and then have no rows for those tokens.

    Raises ConfigError and ModelLoadError when the engine cannot start.
    """

    error: ClassVar[type[KVRescueError]] = ScorerError
    part: ClassVar[str] = "scorer"

    def __init__(self, vllm_config: Any, name: str, *, cached: bool) -> None:
        super().__init__(vllm_config, name)
        if _TASK not in self.llm.get_supported_tasks():
            self.shutdown()
            raise ModelLoadError(
                f"model = {name!r}: vLLM does not classify tokens with it; use a reward model"
            )
        self._cached = cached

    async def run(self, texts: Sequence[Sequence[int]]) -> list[Pooled]:
        """Results of texts, in order; if one fails, or the caller is cancelled, all are stopped.

        Raises ScorerError when the engine is closed or at work on another event loop.
        """
        self._start()
        names = [self.new_name() for _ in texts]
        try:
            futures = [
                self._queue(name, tokens, self._params())
                for name, tokens in zip(names, texts, strict=True)
            ]
            return list(await asyncio.gather(*futures))
        except BaseException:
            self.abort(names)
            raise

    def _params(self) -> PoolingParams:
        return PoolingParams(
            task=_TASK,
            use_activation=True,
            # vLLM reads nothing by default, so that every token has its row; the last always has.
            skip_reading_prefix_cache=not self._cached,
        )

    def _finish(self, output: Any, done: asyncio.Future[Pooled]) -> None:
        if done.done():
            return
        if output.error is not None:
            done.set_exception(ScorerError(f"{self.name}: vLLM failed: {output.error}"))
            return
        done.set_result(Pooled(output.outputs.data.tolist(), int(output.num_cached_tokens)))


def pooling_config(
    folder: str,
    *,
    pooling: Literal["ALL", "STEP"],
    step_tag: int | None,
    cached: bool,
    overrides: Mapping[str, Any],
    dtype: str,
    max_context: int,
    kv_cache_bytes: int | None,
    max_live: int,
    options: Mapping[str, Any],
) -> Any:
    """A VllmConfig for a reward model in which nothing is unsupported. Raises ConfigError.

    Args:
        folder: the checkpoint, in Hugging Face layout.
        pooling: "STEP" returns rows of the tokens `step_tag`, "ALL" those of all tokens.
        step_tag: always given with "STEP": what vLLM would take is the id in one tokenizer.
        cached: keep a prefix cache; vLLM has none with "STEP".
        overrides: changes of the model's own configuration.
        dtype, max_context, kv_cache_bytes, max_live: see `VLLMPRM`.
        options: further fields of vLLM's EngineArgs; they override our defaults and are checked.
    """
    more = {**options}
    settings = {
        **common_settings(folder, dtype, max_context, kv_cache_bytes, max_live),
        "runner": "pooling",
        "convert": "none",
        "enable_prefix_caching": cached,
        "pooler_config": PoolerConfig(tok_pooling_type=pooling, step_tag_id=step_tag),
        "worker_extension_cls": "kvrescue.policies.vllm.reward.Registered",
        "hf_overrides": {**overrides, **more.pop("hf_overrides", {})},
    }
    config = create_config(settings, more, ours=_OURS, owner="scorer")
    refuse(config, _REFUSALS)
    return config
