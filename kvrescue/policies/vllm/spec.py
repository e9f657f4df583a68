"""EvictingSpec and its manager: blocks are allocated by physical, not by logical length.

vLLM goes on counting logical tokens (positions, stop rules, prompts). One number per request,
`evicted` = logical - physical, translates wherever blocks are counted. A fork appears to vLLM as a
prefix-cache hit: the blocks of the held state are copied by vLLM's own copy-on-write path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry, register_kv_cache_spec

from kvrescue.policies.vllm.messages import Fork, Ledger
from kvrescue.policies.vllm.options import evictor_of

__all__ = ["Account", "EvictingManager", "EvictingSpec", "Held"]


@dataclass(slots=True)
class Account:
    """What is counted of a request that runs, beside vLLM's logical lengths."""

    prefix: int = 0
    evicted: int = 0
    """Logical minus physical length."""
    audit: Ledger = field(default_factory=Ledger)
    keep_logits: bool = False
    told: int | None = None
    """`evicted` as the workers know it."""

    def fork(self) -> Account:
        """For a request that starts from a copy of this one's cache."""
        return Account(self.prefix, self.evicted, self.audit.copy())


@dataclass(slots=True)
class Held:
    """A cache that belongs to no request: a trajectory's state, or a finished candidate."""

    blocks: list[KVCacheBlock]
    logical: int
    """Tokens it has seen; position of the next one."""
    complete: bool
    """Its last token was fed and the logits that follow are known (a prompt, a foreign step). A
    candidate's last token was sampled but not fed."""
    account: Account
    """Of the request that it comes from."""

    @property
    def length(self) -> int:
        """Entries held per layer and KV head."""
        return self.logical - self.account.evicted


class EvictingManager(FullAttentionManager):  # type: ignore[misc]
    """Hands out blocks for physical lengths; invariants: a request owns exactly
    ceil(physical / block_size) blocks or more, and shares none of them (eviction writes in place).
    """

    def __init__(self, kv_cache_spec: EvictingSpec, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        self.accounts: dict[str, Account] = {}
        """By request, from its first step, or its fork, until its blocks are given back."""
        self._wanted: dict[str, tuple[str, Held, bool]] = {}
        """Forks that were looked up but have no blocks yet; the scheduler may ask again."""
        self._forked: list[Fork] = []

    # -- forks ----------------------------------------------------------------------------------

    def want_fork(self, request_id: str, name: str, held: Held, repeats: bool) -> None:
        """The next allocation of `request_id` starts from a copy of `held`."""
        self._wanted[request_id] = (name, held, repeats)

    def take_forks(self) -> list[Fork]:
        """Forks made since the last call."""
        forks, self._forked = self._forked, []
        return forks

    def _evicted(self, request_id: str) -> int:
        account = self.accounts.get(request_id)
        return 0 if account is None else account.evicted

    # -- vLLM's interface -----------------------------------------------------------------------

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        wanted = self._wanted.get(request_id)
        evicted = wanted[1].account.evicted if wanted else self._evicted(request_id)
        owned = len(self.req_to_blocks.get(request_id, ()))
        needed: int = cdiv(num_tokens - evicted, self.block_size)
        return max(needed - owned, 0)

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        wanted = self._wanted.pop(request_id, None)
        if wanted is None:
            super().add_local_computed_blocks(
                request_id,
                new_computed_blocks,
                num_local_computed_tokens,
                num_external_computed_tokens,
            )
            return
        name, held, repeats = wanted
        fresh = self.block_pool.get_new_blocks(cdiv(held.length, self.block_size))
        self.req_to_blocks[request_id].extend(fresh)
        for source, copy in zip(held.blocks, fresh, strict=True):
            # Both ends stay alive until the copy has run (Scheduler._free_cow_retained_blocks).
            source.ref_cnt += 1
            copy.ref_cnt += 1
            self._pending_cow_copies.append((source, copy))
        self.num_cached_block[request_id] = 0
        self.accounts[request_id] = held.account.fork()
        self._forked.append(Fork(request_id, name, repeats))

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        evicted = self._evicted(request_id)
        new: list[KVCacheBlock] = super().allocate_new_blocks(
            request_id, num_tokens - evicted, num_tokens_main_model - evicted
        )
        return new

    def cache_blocks(self, request: Any, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Never: a compacted block must not be served as a prefix hit."""

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        self.accounts.pop(request_id, None)
        self._wanted.pop(request_id, None)
        blocks: list[KVCacheBlock] = super().pop_blocks_for_free(request_id)
        return blocks


# vLLM fills its registry with the built-in specs only while it is empty: they must come first.
KVCacheSpecRegistry._ensure_registered()


@register_kv_cache_spec(manager_class=EvictingManager, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class EvictingSpec(FullAttentionSpec):  # type: ignore[misc]
    """Full attention over a bounded cache.

    It has no fields of its own, because vLLM merges specs field by field; the evictor is read
    from `additional_config`.
    """

    def max_memory_usage_bytes(self, vllm_config: Any) -> int:
        """What one sequence needs: its bound, and one batch of prompt tokens on top.

        A longer prompt needs more for a moment; that is checked when it is admitted.
        """
        tokens = vllm_config.model_config.max_model_len
        evictor = evictor_of(vllm_config.additional_config)
        if evictor is not None:
            chunk = vllm_config.scheduler_config.max_num_batched_tokens
            tokens = min(tokens, evictor.bound + evictor.interval + chunk)
        blocks: int = cdiv(tokens, self.block_size)
        return blocks * int(self.page_size_bytes)
