"""Schedulers: vLLM's own, plus what happens to a request between two steps.

`DraftScheduler` (any engine): after every token the request's draft decides whether it ends.
`EvictingScheduler`: it also owns logical and physical lengths, orders evictions, keeps finished
caches as named states and forks requests from them. `schedule()` itself is vLLM's, unchanged.
"""

from __future__ import annotations

from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kvrescue.errors import AuditError, ConfigError, PolicyError
from kvrescue.policies.vllm.messages import (
    KEY,
    Due,
    Report,
    StepMessage,
    Ticket,
    ticket_name,
)
from kvrescue.policies.vllm.options import evictor_of
from kvrescue.policies.vllm.spec import Account, EvictingManager, Held

__all__ = ["DraftScheduler", "EvictingScheduler"]


class DraftScheduler(Scheduler):  # type: ignore[misc]
    """Lets drafts end their requests; the driver hands tickets over in process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tickets: dict[str, Ticket] = {}
        """By name, from `expect` until the request ends."""
        self._known: dict[str, Ticket | None] = {}
        """The tickets again, by the request's id."""
        self._report = Report()

    def expect(self, ticket: Ticket) -> None:
        """Announce a request that will carry `ticket.extra_args`."""
        self.tickets[ticket.name] = ticket

    def _ticket(self, request: Any) -> Ticket | None:
        request_id = request.request_id
        if request_id not in self._known:
            params = request.sampling_params
            name = ticket_name(params.extra_args) if params is not None else None
            self._known[request_id] = None if name is None else self.tickets.get(name)
        return self._known[request_id]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self._report = getattr(model_runner_output, KEY, None) or Report()
        return super().update_from_output(scheduler_output, model_runner_output)

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        new, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        ticket = self._ticket(request)
        if ticket is not None and ticket.draft is not None:
            for token in new:
                if ticket.draft.feed(token, self._report.entropies.get(request.request_id)):
                    request.status = RequestStatus.FINISHED_STOPPED
                    request.stop_reason = ticket.draft.stop and ticket.draft.stop.value
                    stopped = True
        return new, stopped

    def _free_blocks(self, request: Any) -> None:
        ticket = self._ticket(request)
        super()._free_blocks(request)
        self._known.pop(request.request_id, None)
        if ticket is not None:
            self.tickets.pop(ticket.name, None)


class EvictingScheduler(DraftScheduler):
    """Scheduler of an engine with an evictor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        evictor = evictor_of(self.vllm_config.additional_config)
        managers = self.kv_cache_manager.coordinator.single_type_managers
        if evictor is None or len(managers) != 1 or not isinstance(managers[0], EvictingManager):
            raise ConfigError(
                f"the KV cache has {len(managers)} groups, managed by "
                f"{', '.join(type(m).__name__ for m in managers)}; eviction needs one group of "
                "full attention: use a model without sliding-window or state-space layers"
            )
        self.evictor = evictor
        self.manager: EvictingManager = managers[0]
        self.held: dict[str, Held] = {}
        self.preemptions = 0
        self._holds: list[tuple[str, str]] = []
        self._releases: list[str] = []

    # -- states ---------------------------------------------------------------------------------

    def release(self, name: str) -> None:
        """Give the blocks of a state back; a name that is not held is ignored."""
        held = self.held.pop(name, None)
        if held is not None:
            self.manager.block_pool.free_blocks(reversed(held.blocks))
            self._releases.append(name)

    @property
    def free_blocks(self) -> int:
        """Blocks in the pool that nobody owns."""
        return int(self.manager.block_pool.get_num_free_blocks())

    def _hold(self, request: Any, ticket: Ticket, name: str) -> None:
        manager, request_id = self.manager, request.request_id
        account = manager.accounts.get(request_id) or Account(ticket.prefix)
        blocks = manager.pop_blocks_for_free(request_id)
        logical = request.num_computed_tokens
        owned = cdiv(logical - account.evicted, manager.block_size)
        manager.block_pool.free_blocks(reversed(blocks[owned:]))
        self.held[name] = Held(blocks[:owned], logical, ticket.keep_logits, account)
        self._holds.append((request_id, name))

    def _free_request_blocks(self, request: Any) -> None:
        ticket = self._ticket(request)
        ended = request.status in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        )
        wanted = ticket is not None and (ticket.draft is None or ticket.draft.adoptable)
        if ticket is not None and ticket.hold is not None and ended and wanted:
            self._hold(request, ticket, ticket.hold)
        else:  # aborted, failed, preempted or nobody's: free at once
            super()._free_request_blocks(request)

    def _get_local_prefix_cache_hit(self, request: Any) -> tuple[Any, int, int, bool]:
        """A fork is a prefix hit on a state; called again when a preempted fork comes back."""
        ticket = self._ticket(request)
        if ticket is None or ticket.fork is None:
            hit: tuple[Any, int, int, bool] = super()._get_local_prefix_cache_hit(request)
            return hit
        held = self.held.get(ticket.fork)
        if held is None or held.logical > request.num_tokens:
            raise PolicyError(f"state {ticket.fork!r} is gone or longer than its fork")
        repeats = held.logical == request.num_tokens
        if repeats and not held.complete:
            raise PolicyError(f"a fork of {ticket.fork!r} needs the token that was sampled last")
        self.manager.want_fork(request.request_id, ticket.fork, held, repeats)
        return KVCacheBlocks((tuple(held.blocks),)), held.logical - repeats, 0, False

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        self.preemptions += 1
        return super()._preempt_request(*args, **kwargs)

    # -- steps ----------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Any:
        output = super().schedule(throttle_prefills)
        message = StepMessage(self._holds, self.manager.take_forks(), self._releases)
        self._holds, self._releases = [], []
        repeating = {fork.request for fork in message.forks if fork.repeats}
        accounts, evictor = self.manager.accounts, self.evictor
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            account = accounts.get(request_id)
            if account is None or account.told is None:
                account = self._open_account(request)
            if account.told != account.evicted:
                message.evicted[request_id] = account.told = account.evicted
            if request_id in repeating:
                continue
            audit, keep = account.audit, evictor.bound + account.prefix
            # An eviction reads the queries of the last tokens. These are among them as soon as it
            # may come that soon, however the tokens until then are fed.
            near = audit.length + tokens + evictor.observation - keep - evictor.interval
            if near > 0:
                message.captures[request_id] = min(near, tokens, evictor.observation)
            if request.is_prefill_chunk:  # law 6: a prompt or a foreign step is evicted as a whole
                audit.length += tokens
                continue
            if dropped := audit.fed(tokens, keep, evictor.interval):
                message.due[request_id] = Due(
                    keep + dropped,
                    keep,
                    account.prefix,
                    request.num_computed_tokens,
                    keep if account.evicted else 0,
                )
                account.evicted += dropped
            if account.keep_logits:
                message.keep_logits.append(request_id)
        setattr(output, KEY, message)
        return output

    def _open_account(self, request: Any) -> Account:
        """The account of a request that runs for the first time, or again."""
        ticket = self._ticket(request) or Ticket("")
        account = self.manager.accounts.setdefault(request.request_id, Account(ticket.prefix))
        account.keep_logits = ticket.keep_logits
        return account

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        ordered = {r: d.length - d.keep for r, d in getattr(scheduler_output, KEY).due.items()}
        report = getattr(model_runner_output, KEY, None)
        found = report.dropped if report is not None else {}
        if ordered != found:
            raise AuditError(
                f"the scheduler ordered evictions from {len(ordered)} sequences "
                f"({sum(ordered.values())} entries), the workers made {len(found)} "
                f"({sum(found.values())}): the eviction hook was not called as it should be"
            )
        return super().update_from_output(scheduler_output, model_runner_output)
