"""Forks that share their prefix do what forks with a copy of it each do, and hold it once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from kvrescue.config import load_config
from kvrescue.detectors import Detector, DetectorState, TokenEvent
from kvrescue.engine.engine import Engine
from kvrescue.engine.forks import Forks, PackedForks, RowForks
from kvrescue.engine.packs import EVERYBODY, NOBODY, WIDTH, shares_prefix, widths
from kvrescue.engine.runner import Runner
from kvrescue.engine.sequence import HeldFork, ParkedSequence
from kvrescue.engine.slots import SlotStore, width_bucket
from kvrescue.errors import ConfigError, PolicyError
from kvrescue.evictors import RKV, Evictor, NoEviction
from kvrescue.policies import TorchPolicy
from kvrescue.policies.base import Sampling
from kvrescue.policies.specs import TorchPolicySpec
from kvrescue.types import StopReason, Verdict
from tests.engine.models import EOS, FAMILIES, VOCAB, engine_for, shared_model

ENDLESS = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_step_tokens=12, separator="\x00")
STOPPING = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_step_tokens=12)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def own_entries(fork: HeldFork, start: int) -> Tensor:
    """Keys and values of a held fork from slot `start` on."""
    first = fork.block.start
    return torch.stack(
        [
            fork.block.entries[name][fork.index, :, :, start - first : fork.length - first]
            for name in ("keys", "values")
        ]
    )


class ForksMachine(RuleBasedStateMachine):
    """Fork, step, hold, drop and extend parents, in both layouts side by side."""

    width = WIDTH

    @initialize(capacity=st.sampled_from([1, 400]))
    def start(self, capacity: int) -> None:
        """`capacity`: what the store of packs has from an earlier, longer step."""
        adapter = engine_for(shared_model()).adapter
        self.runner = Runner(adapter, None, share_prefix=False)
        self.sides: list[Forks] = [
            RowForks(self.runner),
            PackedForks(Runner(adapter, None, share_prefix=True), self.width),
        ]
        self.sides[1].store.reserve(1, capacity)
        self.parked = self.runner.store(0)
        self.open = 0
        self.made = 0
        self.names: list[list[int]] = [[], []]
        """Who is fork i of each side."""
        self.drafts: dict[int, Any] = {}
        self.random = np.random.default_rng(0)

    def _tokens(self, count: int) -> np.ndarray:
        return self.random.integers(3, VOCAB - 2, count)

    def _feed(self, row: int, count: int) -> None:
        scratch = self.runner.store(1, int(self.parked.length[row]) + count)
        scratch.copy_from(self.parked, [row], [0])
        self.runner.forward(scratch, self._tokens(count)[None], np.array([count]))
        self.parked.reserve(self.parked.rows, int(scratch.length[0]))
        self.parked.copy_from(scratch, [0], [row])

    @rule(length=st.integers(1, 90))
    def park(self, length: int) -> None:
        self.parked.reserve(self.open + 1, self.parked.capacity)
        self.open += 1
        self._feed(self.open - 1, length)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(0, 9))
    def fork(self, data: st.DataObject, count: int) -> None:
        row = data.draw(st.integers(0, self.open - 1))
        for side, names in zip(self.sides, self.names, strict=True):
            side.fork(self.parked, row, count)
            names += range(self.made, self.made + count)
        length = int(self.parked.length[row])
        for name in range(self.made, self.made + count):
            self.drafts[name] = SimpleNamespace(fork_length=length, evicted=False, audit=None)
        self.made += count

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 9))
    def extend_the_parent(self, data: st.DataObject, count: int) -> None:
        """Forks that live are not concerned."""
        self._feed(data.draw(st.integers(0, self.open - 1)), count)

    @precondition(lambda self: self.names[0])
    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            token = dict(zip(self.names[0], self._tokens(len(self.names[0])), strict=True))
            rows, packs = (
                dict(zip(names, side.step(np.array([token[n] for n in names])), strict=True))
                for side, names in zip(self.sides, self.names, strict=True)
            )
            for name, hidden in rows.items():
                torch.testing.assert_close(packs[name], hidden, **CLOSE)

    @precondition(lambda self: self.names[0])
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Some forks are held and leave."""
        ended = data.draw(st.sets(st.sampled_from(sorted(self.names[0])), min_size=1))
        held: list[dict[int, HeldFork]] = []
        for k, (side, names) in enumerate(zip(self.sides, self.names, strict=True)):
            forks = [names.index(name) for name in sorted(ended)]
            found = side.hold({i: self.drafts[names[i]] for i in forks})
            held.append(dict(zip(sorted(ended), found, strict=True)))
            self.names[k] = [names[i] for i in side.remove(forks)]
        for name in ended:
            rows, packs = held[0][name], held[1][name]
            start = self.drafts.pop(name).fork_length
            assert (rows.length, rows.logical) == (packs.length, packs.logical)
            assert packs.block.start == start
            torch.testing.assert_close(own_entries(packs, start), own_entries(rows, start), **CLOSE)

    @invariant()
    def both_know_the_same_forks(self) -> None:
        if not hasattr(self, "names"):
            return
        lengths = [
            dict(zip(names, side.lengths.tolist(), strict=True))
            for side, names in zip(self.sides, self.names, strict=True)
        ]
        assert lengths[0] == lengths[1]
        packs = self.sides[1]
        assert isinstance(packs, PackedForks)
        assert np.unique(packs.row).tolist() == list(range(packs.rows))
        assert (np.diff(packs.row) >= 0).all()
        for row in range(packs.rows):  # most of what a pack has written is of forks that live
            inside = packs.row == row
            live = packs.lengths[inside] - packs.start[inside]
            own = int(packs.store.length[row]) - int(packs.start[inside][0])
            assert live.sum() <= own <= 2 * live.sum()
        if packs.batch is not None:  # what it covers follows what is used
            assert packs.batch.reach <= width_bucket(int(packs.store.length[: packs.rows].max()))


class NarrowMachine(ForksMachine):
    """Small packs: more of them end, and rows move."""

    width = 2


TestForks = ForksMachine.TestCase
TestNarrow = NarrowMachine.TestCase
TestForks.settings = TestNarrow.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None
)


@pytest.mark.parametrize("share", [True, False])
async def test_a_proposal_of_no_candidates_is_empty(share: bool) -> None:
    """Beside one of three, and it drops the forks of the last one as any proposal does."""
    engine = engine_for(shared_model(), share_prefix=share)
    first, other = await engine.open([5, 6, 7]), await engine.open([8, 9])
    args: tuple[Any, ...] = (STOPPING, ())
    await engine.propose(first, *args, range(2), 12, StopReason.LENGTH)
    found = await asyncio.wait_for(
        asyncio.gather(
            engine.propose(first, *args, [], 12, StopReason.LENGTH),
            engine.propose(other, *args, range(3), 12, StopReason.LENGTH),
        ),
        60,
    )
    assert [len(drafts) for drafts in found] == [0, 3]
    assert not first.forks
    engine.close(first)
    engine.close(other)
    assert sum(engine.in_use.values()) == 0


@given(st.integers(0, 60), st.integers(1, 9))
def test_packs_are_few_and_alike(count: int, width: int) -> None:
    sizes = list(widths(count, width))
    assert sum(sizes) == count
    assert len(sizes) == -(-count // width)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


# -- whole engines --------------------------------------------------------------------------------


async def fresh_logits(engine: Engine, tokens: list[int]) -> Tensor:
    sequence = await engine.open(tokens)
    logits = sequence.logits
    engine.close(sequence)
    assert logits is not None
    return logits


class Finds(Detector):
    """Ends, or breaks at, a candidate with a token that `of` divides: some of a proposal, at
    different places."""

    kind: ClassVar[str] = "finds"
    of: int
    breaks: bool = False

    def start(self) -> DetectorState:
        return _Finds(self)


class _Finds(DetectorState):
    def __init__(self, options: Finds) -> None:
        self.options = options

    def update(self, event: TokenEvent) -> Verdict | None:
        if event.token_id % self.options.of:
            return None
        if self.options.breaks:
            raise ZeroDivisionError("a broken detector")
        return Verdict("finds", "test", 1, 1.0, 0.5)


acts = st.tuples(
    st.sampled_from(["adopt", "foreign", "cancel"]),
    st.integers(1, 11),
    st.sampled_from([ENDLESS, STOPPING]),
    st.integers(0, 7),
    st.sampled_from([(), (Finds(of=5),), (Finds(of=2),), (Finds(of=40, breaks=True),)]),
)


@given(
    schedules=st.lists(
        st.tuples(st.integers(1, 40), st.lists(acts, max_size=4)), min_size=1, max_size=4
    ),
    rows=st.sampled_from([3, 64]),
)
@settings(max_examples=20, deadline=None)
def test_any_schedule_leaves_what_a_fresh_prefill_gives(
    schedules: list[tuple[int, list[Any]]], rows: int
) -> None:
    """Own steps, foreign ones, cancelled proposals, aborted candidates, detectors that break and
    closing, of several problems at once."""
    engine = engine_for(shared_model(), share_prefix=True, max_live_rows=rows)
    final: list[tuple[ParkedSequence, list[int]]] = []
    broken: list[BaseException | None] = []

    async def one(length: int, schedule: list[Any]) -> None:
        tokens = [3 + (7 * i + length) % (VOCAB - 6) for i in range(length)]
        sequence = await engine.open(tokens)
        for kind, n, sampling, number, detectors in schedule:
            proposal = asyncio.ensure_future(
                engine.propose(sequence, sampling, detectors, range(n), 12, StopReason.LENGTH)
            )
            if kind == "cancel":
                for _ in range(number):
                    await asyncio.sleep(0)
                proposal.cancel()
                await asyncio.gather(proposal, return_exceptions=True)
                continue
            try:
                chosen = (await proposal)[number % n]
            except PolicyError as error:
                broken.append(error.__cause__)
                assert detectors[0].breaks
                continue
            read = [t for t in chosen.token_ids if t != EOS]  # the end is no detector's business
            found = [t for t in read for detector in detectors if t % detector.of == 0]
            assert (chosen.stop is StopReason.ABORTED) == bool(found)
            assert (number % n in sequence.forks) == (chosen.stop is not StopReason.ABORTED)
            if kind == "adopt" and number % n in sequence.forks:
                engine.adopt(sequence, number % n)
                await engine.extend(sequence, chosen.token_ids[-1:])
            else:
                await engine.extend(sequence, chosen.token_ids)
            tokens += chosen.token_ids
        final.append((sequence, tokens))

    async def run() -> None:
        await asyncio.gather(*(one(*schedule) for schedule in schedules))
        for sequence, tokens in final:
            assert engine.stats(sequence).logical_length == len(tokens)
            torch.testing.assert_close(
                sequence.logits, await fresh_logits(engine, tokens), rtol=1e-3, atol=1e-3
            )
        last = final[0][0]
        doomed = asyncio.ensure_future(
            engine.propose(last, ENDLESS, (), range(9), 12, StopReason.LENGTH)
        )
        for _ in range(4):
            await asyncio.sleep(0)
        for sequence, _ in final:
            engine.close(sequence)
        assert isinstance((await asyncio.gather(doomed, return_exceptions=True))[0], BaseException)

    asyncio.run(run())
    assert all(isinstance(cause, ZeroDivisionError) for cause in broken)
    assert sum(engine.in_use.values()) == 0
    assert engine.live.forks.rows == 0
    assert (engine.parked.store.length == 0).all()


async def drawn(engine: Engine, lengths: list[int], n: int) -> list[list[list[int]]]:
    """Token ids of `n` candidates for each of some prompts."""
    sequences = [await engine.open([3 + (5 * i + k) % 50 for i in range(k)]) for k in lengths]
    found = await asyncio.gather(
        *(engine.propose(s, STOPPING, (), range(n), 12, StopReason.LENGTH) for s in sequences)
    )
    for sequence in sequences:
        engine.close(sequence)
    return [[d.token_ids for d in drafts] for drafts in found]


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_family_draws_the_same_candidates(family: str) -> None:
    shared, copied = (engine_for(shared_model(family), share_prefix=x) for x in (True, False))
    assert await drawn(shared, [33, 5, 18], 10) == await drawn(copied, [33, 5, 18], 10)


async def test_the_parent_may_grow_and_go_while_its_forks_live() -> None:
    """A row is never read once it is freed: forks hold what they read."""
    engine = engine_for(shared_model(), share_prefix=True)
    prompt = [3 + i for i in range(30)]
    sequence = await engine.open(prompt)

    async def proposed() -> list[list[int]]:
        drafts = await engine.propose(sequence, ENDLESS, (), range(8), 12, StopReason.LENGTH)
        return [d.token_ids for d in drafts]

    alone = await proposed()
    running = asyncio.ensure_future(proposed())
    for _ in range(6):
        await asyncio.sleep(0)
    assert engine.in_use["live"] == 8
    engine.parked.store.scrub([sequence.row])
    await engine.extend(sequence, [9] * 20)
    assert await running == alone
    engine.close(sequence)


async def test_a_mask_is_as_wide_as_what_is_used() -> None:
    """Not as the longest step that the store has ever seen."""
    engine = engine_for(shared_model(), share_prefix=True)
    forks = engine.live.forks
    assert isinstance(forks, PackedForks)
    forks.store.reserve(1, 7232)
    sequence = await engine.open([3 + i for i in range(30)])
    proposal = asyncio.ensure_future(
        engine.propose(sequence, ENDLESS, (), range(8), 12, StopReason.LENGTH)
    )
    seen: set[int] = set()
    while not proposal.done():
        if forks.batch is not None and forks.batch.mask is not None:
            seen.add(forks.batch.mask.shape[3])
        await asyncio.sleep(0)
    assert seen <= {64, 96, 128}
    assert {64, 96} <= seen  # 30 + 8 entries for each of up to 11 steps
    engine.close(sequence)


def test_a_straggler_reads_little_of_what_its_siblings_wrote() -> None:
    """Eight forks of 30 entries, of which one goes on after ten tokens."""
    adapter = engine_for(shared_model()).adapter
    forks, parked = (
        PackedForks(Runner(adapter, None, share_prefix=True)),
        SlotStore(adapter.shape(), 1, 30),
    )
    adapter.forward(parked, np.arange(3, 33)[None], np.array([30]))
    forks.fork(parked, 0, 8)
    for _ in range(10):
        forks.step(np.arange(3, 11))
    assert forks.store.length[0] == 30 + 80
    forks.remove([0, 1, 2])
    assert forks.store.length[0] == 30 + 80  # 50 of 80 are alive
    forks.remove([0, 1])
    assert forks.store.length[0] == 30 + 30
    assert forks.owner[0].tolist()[:60] == [EVERYBODY] * 30 + [5, 6, 7] * 10
    assert set(forks.owner[0].tolist()[60:]) == {NOBODY}
    forks.remove([0, 2])
    assert forks.store.length[0] == 30 + 10
    forks.step(np.array([4]))
    assert forks.store.length[0] == 30 + 11
    assert forks.batch is not None
    assert forks.batch.mask is None  # alone, and without gaps


HELD = [(True, 8, 30 + 8 * 10), (False, 8, 8 * 40), (True, 1, 40), (True, 9, 2 * 30 + 9 * 10)]


@pytest.mark.parametrize(("share", "n", "filled"), HELD)
async def test_the_prefix_is_held_once_for_eight_candidates(
    share: bool, n: int, filled: int
) -> None:
    """Entries in live rows when each candidate has been fed ten tokens after a prefix of 30."""
    engine = engine_for(shared_model(), share_prefix=share)
    engine.eos = frozenset()
    sequence = await engine.open([3 + i for i in range(30)])
    proposal = engine.propose(sequence, ENDLESS, (), range(n), 11 + 1, StopReason.LENGTH)
    running = asyncio.ensure_future(proposal)
    seen: set[tuple[int, int]] = set()
    for _ in range(100):
        live = engine.live
        if live.drafts:
            held = int(live.store.length[: live.forks.rows].sum())
            seen.add((live.drafts[0].audit.peak, held))
        await asyncio.sleep(0)
    assert [peak for peak, _ in sorted(seen)][-1] == 40  # each sees as much as ever
    assert max(seen) == (40, filled)
    assert {d.audit.peak for d in await running} == {41}
    engine.close(sequence)


def test_where_prefixes_are_shared() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    plain = {"evicts": False, "graphs": False}
    assert shares_prefix(None, "m", cpu, **plain)
    assert not shares_prefix(False, "m", cpu, **plain)
    assert not shares_prefix(None, "m", cuda, **plain)  # until one has measured it
    assert shares_prefix(True, "m", cuda, **plain)
    assert not shares_prefix(None, "m", cpu, evicts=True, graphs=False)
    assert not shares_prefix(False, "m", cuda, evicts=True, graphs=True)
    assert not shares_prefix(None, "m", cuda, evicts=False, graphs=True)


def test_an_engine_takes_the_layout_that_fits() -> None:
    model = shared_model()
    assert isinstance(engine_for(model).live.forks, PackedForks)
    assert isinstance(engine_for(model, NoEviction()).live.forks, PackedForks)
    assert isinstance(engine_for(model, share_prefix=False).live.forks, RowForks)
    assert isinstance(engine_for(model, RKV(budget=4, window=2)).live.forks, RowForks)
    assert isinstance(TorchPolicy("tiny/helper").engine.live.forks, PackedForks)
    policy = TorchPolicy("tiny/helper", share_prefix=False)
    assert isinstance(policy.engine.live.forks, RowForks)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"random: share_prefix = True .* an evictor"):
        engine_for(shared_model(), RKV(budget=4, window=2), share_prefix=True)
    with pytest.raises(ConfigError, match=r"share_prefix = True .* graphs = True.*leave one out"):
        engine_for(shared_model(), graphs=True, share_prefix=True)


@given(
    evictor=st.sampled_from([None, NoEviction(), RKV(budget=4, window=2)]),
    graphs=st.booleans(),
    share=st.sampled_from([None, False, True]),
)
def test_a_configuration_refuses_what_an_engine_refuses(
    evictor: Evictor | None, graphs: bool, share: bool | None
) -> None:
    """The engine's other reasons are its device's."""
    found = {}
    evicts = evictor is not None and evictor.bounded
    for name, build in (
        (
            "spec",
            lambda: TorchPolicySpec(model="m", evictor=evictor, graphs=graphs, share_prefix=share),
        ),
        (
            "engine",
            lambda: shares_prefix(share, "m", torch.device("cpu"), evicts=evicts, graphs=graphs),
        ),
    ):
        try:
            build()
        except ConfigError as error:
            found[name] = str(error).partition("does not go with ")[2]
    assert found.get("spec") == found.get("engine")


def test_a_prefix_that_cannot_be_shared_is_told_before_a_model_is_loaded() -> None:
    with pytest.raises(
        ConfigError, match=r"^proposers\.base\.policy\.share_prefix: true .* an evictor: .*one out$"
    ):
        load_config("tiny", ["proposers.base.policy.share_prefix=true"])
    assert load_config("tiny", ["proposers.helper.policy.share_prefix=true"])
