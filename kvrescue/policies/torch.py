"""TorchPolicy: a Hugging Face decoder on the torch engine, evicted or with full context."""

from __future__ import annotations

from kvrescue.detectors.base import Source
from kvrescue.engine.checkpoint import resolve
from kvrescue.engine.choices import DType, Template
from kvrescue.engine.engine import Engine
from kvrescue.engine.loading import default_device, default_dtype, load_causal_lm
from kvrescue.evictors.base import Evictor
from kvrescue.evictors.firing import Watch
from kvrescue.options import checked_by
from kvrescue.policies.local import EngineView, LocalPolicy, check_evictor
from kvrescue.policies.specs import TorchPolicySpec
from kvrescue.types import Question

__all__ = ["TorchPolicy"]


class TorchPolicy(LocalPolicy):
    """Proposes steps with a local model.

    `model`: see `kvrescue.engine.checkpoint`. `evictor` None means full context. `template` "chat"
    renders the question through the tokenizer's chat template (with `system`, when given),
    "raw" encodes it as it is. `graphs` decodes from CUDA graphs, with `share_prefix` candidates of
    one problem read one copy of its cache. Raises ModelLoadError, and ConfigError for one of the
    two that cannot be had.
    """

    @checked_by(TorchPolicySpec, but=["evictor"])
    def __init__(
        self,
        model: str,
        *,
        evictor: Evictor | None = None,
        system: str | None = None,
        template: Template = "chat",
        max_context: int | None = None,
        max_live_rows: int = 1024,
        device: str | None = None,
        dtype: DType = "auto",
        graphs: bool = False,
        share_prefix: bool | None = None,
    ) -> None:
        check_evictor(evictor)
        checkpoint = resolve(model)
        self._read_tokenizer(checkpoint, system, template)
        where = default_device(device)
        adapter = load_causal_lm(
            checkpoint, device=where, dtype=default_dtype(dtype, where), max_context=max_context
        )
        self.max_context = adapter.max_context
        self.engine: Engine = Engine(
            adapter,
            evictor=evictor,
            pieces=self.pieces,
            eos=self._eos(adapter.generation_eos),
            max_live_rows=max_live_rows,
            graphs=graphs,
            share_prefix=share_prefix,
        )

    async def open_watched(self, question: Question, name: str, watch: Watch) -> EngineView:
        prompt = self._prompt(question, name)
        return EngineView(self, name, await self.engine.open(prompt, watch))

    @property
    def source(self) -> Source:
        return Source(vocab_size=self.engine.adapter.vocab_size, max_step_tokens=self.max_context)
