"""Model runners: vLLM's V1 runner with entropies, and with eviction between forward passes.

One mixin serves the CPU and the CUDA runner, because the former is a subclass of the latter. What
the scheduler says is applied before the forward pass of the same step; eviction follows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvrescue.engine.sampler import entropy
from kvrescue.errors import AuditError, ConfigError
from kvrescue.evictors.base import Evictor
from kvrescue.policies.vllm.attention import QueryRing, capture
from kvrescue.policies.vllm.eviction import DueSequence, PagedCache
from kvrescue.policies.vllm.messages import KEY, Report, StepMessage
from kvrescue.policies.vllm.options import evictor_of
from kvrescue.policies.vllm.selftest import find_layout
from kvrescue.policies.vllm.spec import EvictingSpec

__all__ = ["EntropyMixin", "EvictionMixin"]

_NOWHERE = 0
"""A slot of block 0, vLLM's null block, which no request ever owns."""


class EntropyMixin:
    """Reports the entropy of every request's raw logits, before anything is done to them."""

    input_batch: Any
    execute_model_state: Any
    discard_request_mask: Any

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        self._report = Report()
        output = super().execute_model(scheduler_output, intermediate_tensors)  # type: ignore[misc]
        state = self.execute_model_state
        if state is not None:
            self._after_forward(state.logits)
            if state.logits is not None:
                self._entropies = entropy(state.logits)
                self._rows = list(self.input_batch.req_ids)
        return output

    def _after_forward(self, logits: Tensor | None) -> None:
        """Between the forward pass and the entropies of `logits` [requests, vocab]."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        state = self.execute_model_state
        sampled = state is not None and state.logits is not None
        with self._unfinished_prompts_draw_nothing():
            output = super().sample_tokens(grammar_output)  # type: ignore[misc]
        if sampled and output is not None:
            values = self._entropies.tolist()
            self._report.entropies = dict(zip(self._rows, values, strict=True))
        if output is not None and state is not None:
            setattr(output, KEY, self._report)
        return output

    @contextlib.contextmanager
    def _unfinished_prompts_draw_nothing(self) -> Iterator[None]:
        """vLLM samples for them, too, and winds their generators back, which only CUDA's can."""
        generators = self.input_batch.generators
        rows = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])
        aside = {row: generators.pop(row) for row in rows.tolist() if row in generators}
        try:
            yield
        finally:
            generators.update(aside)


class EvictionMixin(EntropyMixin):
    """Physical lengths in slot mapping and sequence lengths; states, forks and evictions."""

    vllm_config: Any
    kv_cache_config: Any
    compilation_config: Any
    requests: dict[str, Any]
    req_indices: Any
    positions: Tensor
    seq_lens: Tensor
    optimistic_seq_lens_cpu: Tensor
    max_num_reqs: int
    device: torch.device
    _message: StepMessage | None = None

    # -- start ----------------------------------------------------------------------------------

    def get_kv_cache_spec(self) -> dict[str, Any]:
        found: dict[str, Any] = super().get_kv_cache_spec()  # type: ignore[misc]
        shared = getattr(self, "shared_kv_cache_layers", None)
        if shared:
            raise ConfigError(
                f"layers {sorted(shared)[:3]} share the KV cache of other layers; eviction does "
                "not support that: use a model whose layers have caches of their own"
            )
        for name, spec in found.items():
            window = getattr(spec, "sliding_window", None)
            chunk = getattr(spec, "attention_chunk_size", None)
            if type(spec) is not FullAttentionSpec or window is not None or chunk is not None:
                raise ConfigError(
                    f"layer {name} has a {type(spec).__name__} (sliding_window = {window}, "
                    f"attention_chunk_size = {chunk}); eviction needs plain full attention in "
                    "every layer: use another model, or no evictor"
                )
            values = {f.name: getattr(spec, f.name) for f in fields(FullAttentionSpec) if f.init}
            found[name] = EvictingSpec(**values)
        return found

    def initialize_kv_cache(
        self, kv_cache_config: Any, is_profiling: bool = False, **kwargs: Any
    ) -> None:
        super().initialize_kv_cache(kv_cache_config, is_profiling, **kwargs)  # type: ignore[misc]
        if is_profiling:
            return
        evictor = evictor_of(self.vllm_config.additional_config)
        groups = self.kv_cache_config.kv_cache_groups
        if evictor is None or len(groups) != 1:
            raise ConfigError(
                f"the KV cache has {len(groups)} groups; eviction needs one: use a model of "
                "which every layer has full attention"
            )
        context = self.compilation_config.static_forward_context
        layers = [context[name] for name in groups[0].layer_names]
        self._start_eviction(evictor, layers)

    def _start_eviction(self, evictor: Evictor, layers: list[Any]) -> None:
        impl = layers[0].impl
        if getattr(impl, "alibi_slopes", None) is not None:
            raise ConfigError(
                "the model uses ALiBi, which counts distances between cache slots; eviction "
                "needs rotary positions: use another model, or no evictor"
            )
        layout = find_layout(layers, self.kv_cache_config.num_blocks)
        caches = [layer.kv_cache for layer in layers]
        self.ring = QueryRing(
            len(layers),
            evictor.observation,
            impl.num_heads,
            impl.head_size,
            slots=2 * self.max_num_reqs,
            dtype=caches[0].dtype,
            device=caches[0].device,
        )
        self.paged = PagedCache(evictor, layout, caches, self.ring)
        for number, layer in enumerate(layers):
            capture(layer, number, self.ring)
        self._evicted: dict[str, int] = {}
        self._rows: list[str] = []
        self._shift: Tensor | None = None
        self._logits: dict[str, Tensor] = {}
        self._wrap_slot_mapping()

    def _wrap_slot_mapping(self) -> None:
        """Slots are counted by physical position. Done at the source: logical positions would
        index past the block table."""
        table = self.input_batch.block_table
        inner = table.compute_slot_mapping

        def compute_slot_mapping(num_reqs: int, query_start_loc: Tensor, positions: Tensor) -> None:
            shift, tokens = self._shift, positions.shape[0]
            if self._message is not None and shift is not None:
                if tokens != num_reqs:  # else every request has one token
                    shift = shift.index_select(0, self.req_indices.gpu[:tokens].long())
                positions = positions - shift
            inner(num_reqs, query_start_loc, positions)

        table.compute_slot_mapping = compute_slot_mapping

    # -- one step -------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        message: StepMessage | None = getattr(scheduler_output, KEY, None)
        if message is None:
            raise ConfigError(
                "a step came without a message of kvrescue's scheduler; start the engine with "
                "VLLMPolicy, which sets scheduler_cls and worker_cls together"
            )
        self._message = message
        self._repeats = {fork.request for fork in message.forks if fork.repeats}
        self._apply(message, scheduler_output.finished_req_ids)
        try:
            return super().execute_model(scheduler_output, intermediate_tensors)
        finally:
            self._message = None
            self.ring.disarm()

    def _apply(self, message: StepMessage, finished: set[str]) -> None:
        ring, logits = self.ring, self._logits
        for request, state in message.holds:
            ring.rename(f"request {request}", f"state {state}")
            if (kept := logits.pop(f"request {request}", None)) is not None:
                logits[f"state {state}"] = kept
        for request in finished:
            ring.drop(f"request {request}")
            logits.pop(f"request {request}", None)
            self._evicted.pop(request, None)
        for fork in message.forks:
            ring.copy(f"state {fork.state}", f"request {fork.request}")
            if fork.repeats:  # kept apart: the state may be released in this very step
                logits[f"fork {fork.request}"] = logits[f"state {fork.state}"]
        for state in message.releases:
            ring.drop(f"state {state}")
            logits.pop(f"state {state}", None)
        if message.evicted:
            self._evicted.update(message.evicted)
            self._rows = []

    def _update_states(self, scheduler_output: Any) -> Any:
        result = super()._update_states(scheduler_output)  # type: ignore[misc]
        if scheduler_output.kv_cache_block_copies:
            self.paged.copy_blocks(scheduler_output.kv_cache_block_copies)
        return result

    def _prepare_inputs(self, scheduler_output: Any, num_scheduled_tokens: np.ndarray) -> Any:
        """Inputs of the forward pass; lengths stay logical until vLLM has used them as such."""
        message = self._message
        if message is None:
            return super()._prepare_inputs(scheduler_output, num_scheduled_tokens)  # type: ignore[misc]
        self._find_shift()
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)  # type: ignore[misc]
        if self._shift is not None:
            count = len(self._rows)
            self.seq_lens[:count] -= self._shift
            self.optimistic_seq_lens_cpu[:count] -= self._shift_cpu
        if self._repeats:
            self._write_nowhere(num_scheduled_tokens)
        if message.captures:
            self._arm(message.captures, num_scheduled_tokens)
        return prepared

    def _find_shift(self) -> None:
        """[requests] logical minus physical length, None where nobody's differ; kept while the
        batch and the lengths' difference stay what they are."""
        requests = self.input_batch.req_ids
        if requests == self._rows:
            return
        self._rows = list(requests)
        evicted = [self._evicted[r] for r in requests]
        self._shift_cpu = torch.tensor(evicted, dtype=self.optimistic_seq_lens_cpu.dtype)
        self._shift = self._shift_cpu.to(self.seq_lens) if any(evicted) else None

    def _write_nowhere(self, scheduled: np.ndarray) -> None:
        """What a repeated token computes is known: its slot must not be written."""
        slots = self.input_batch.block_table[0].slot_mapping.gpu
        rows = [i for i, r in enumerate(self._rows) if r in self._repeats]
        last = np.cumsum(scheduled)[rows] - 1  # it is the only one
        slots[torch.from_numpy(last).to(slots.device, torch.int64)] = _NOWHERE

    def _arm(self, captures: dict[str, int], scheduled: np.ndarray) -> None:
        """Say which tokens' queries are remembered, and where in the ring."""
        size = self.ring.observation
        take: list[int] = []
        put: list[int] = []
        ends = np.cumsum(scheduled).tolist()
        seen = (self.input_batch.num_computed_tokens_cpu[: len(ends)] + scheduled).tolist()
        for request, end, logical in zip(self._rows, ends, seen, strict=True):
            if count := captures.get(request):
                slot = self.ring.slot(f"request {request}")
                take += range(end - count, end)
                put += [slot * size + p % size for p in range(logical - count, logical)]
        self.ring.arm(take, put, ends[-1])

    def _after_forward(self, logits: Tensor | None) -> None:
        """Replace logits that are known better, evict, keep logits; before entropies are taken."""
        message = self._message
        if message is None:
            return
        row_of = self.input_batch.req_id_to_index
        for request in self._repeats:
            known = self._logits.pop(f"fork {request}", None)
            if logits is not None and known is not None:
                logits[row_of[request]] = known
        for request in message.keep_logits:
            if logits is not None:
                self._logits[f"request {request}"] = logits[row_of[request]].clone()
        if message.due:
            if self.ring.calls != len(self.paged.caches):
                raise AuditError(
                    f"{self.ring.calls} of {len(self.paged.caches)} layers delivered their "
                    "queries: attention ran without kvrescue's hook (full CUDA graphs?); set "
                    "enforce_eager=True"
                )
            self._report.dropped = self._evict(message)

    def _evict(self, message: StepMessage) -> dict[str, int]:
        table = self.input_batch.block_table[0].get_numpy_array()
        row_of = self.input_batch.req_id_to_index
        sequences = [
            DueSequence(f"request {r}", due, table[row_of[r]].astype(np.int64))
            for r, due in message.due.items()
        ]
        self.paged.evict(sequences)
        if self.ring.observation <= self.paged.evictor.interval:
            for s in sequences:  # the next eviction comes with queries of its own
                self.ring.drop(s.owner)
        return {r: due.length - due.keep for r, due in message.due.items()}
