"""The engine's promises to its callers: isolation, early abort, cancellation, no hang, no leak."""

from __future__ import annotations

import asyncio

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.engine.engine import Engine
from kvrescue.errors import NonFiniteLogitsError, PolicyError
from kvrescue.evictors import RKV, NoEviction
from kvrescue.policies.base import Sampling
from kvrescue.types import StopReason
from tests.engine.firing import Exits, FiresAt
from tests.engine.models import VOCAB, engine_for, random_model, shared_model

SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=20, max_step_tokens=16)
ENDLESS = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_step_tokens=16, separator="\x00")
ONE_MORE = ENDLESS.model_copy(update={"max_step_tokens": 1})
PROMPT = [5, 9, 13, 4, 22, 31]


async def propose(engine: Engine, sequence, seeds, sampling=SAMPLING, detectors=()):
    return await engine.propose(
        sequence, sampling, detectors, seeds, sampling.max_step_tokens, StopReason.LENGTH
    )


def ids(drafts) -> list[list[int]]:
    return [d.token_ids for d in drafts]


@pytest.fixture(params=[None, RKV(budget=4, window=2, observation=2)], ids=["full", "evicted"])
def engine(request) -> Engine:
    return engine_for(shared_model(), request.param)


async def test_a_candidate_depends_on_its_seed_alone(engine: Engine) -> None:
    """Law 9: company, order and repetition do not change what a seed draws."""
    sequence = await engine.open(PROMPT)
    together = ids(await propose(engine, sequence, [11, 12, 13, 14]))
    alone = [ids(await propose(engine, sequence, [s]))[0] for s in (14, 13, 12, 11)]
    assert together == alone[::-1]
    assert len({tuple(t) for t in together}) > 1
    engine.close(sequence)


async def test_few_live_rows_give_the_same_candidates() -> None:
    wide, narrow = engine_for(shared_model()), engine_for(shared_model(), max_live_rows=2)
    out = []
    for engine in (wide, narrow):
        sequences = [await engine.open(PROMPT[i:]) for i in range(3)]
        rounds = await asyncio.gather(*(propose(engine, s, range(7)) for s in sequences))
        out.append([ids(r) for r in rounds])
        for s in sequences:
            engine.close(s)
        assert engine.live.store.rows <= max(2, engine.live.max_rows)
    assert out[0] == out[1]


async def test_proposing_leaves_the_parent_untouched(engine: Engine) -> None:
    """Law 5: writing in a child never changes the parent."""
    sequence = await engine.open(PROMPT)
    store, row = engine.parked.store, sequence.row
    before = (store.keys[row].clone(), store.values[row].clone(), store.length.copy())
    await propose(engine, sequence, range(5), ENDLESS)
    assert torch.equal(store.keys[row], before[0])
    assert torch.equal(store.values[row], before[1])
    assert (store.length == before[2]).all()
    engine.close(sequence)


async def test_adopting_any_sibling_equals_having_decoded_it_alone(engine: Engine) -> None:
    sequence = await engine.open(PROMPT)
    drafts = await propose(engine, sequence, range(4), ENDLESS)
    chosen = drafts[2]
    engine.adopt(sequence, 2)
    await engine.extend(sequence, chosen.token_ids[-1:])
    lonely = await engine.open(PROMPT)
    await propose(engine, lonely, [2], ENDLESS)
    engine.adopt(lonely, 0)
    await engine.extend(lonely, chosen.token_ids[-1:])
    store = engine.parked.store
    n = int(store.length[sequence.row])
    assert n == int(store.length[lonely.row])
    torch.testing.assert_close(
        store.in_order("keys", sequence.row),
        store.in_order("keys", lonely.row),
        rtol=1e-4,
        atol=1e-4,
    )
    assert sequence.audit == lonely.audit
    engine.close(sequence)
    engine.close(lonely)


async def test_an_aborted_candidate_stops_consuming_compute_at_once() -> None:
    """Law 8: with the verdict at token 3, two tokens were fed per candidate, not sixteen."""
    engine = engine_for(shared_model())
    sequence = await engine.open(PROMPT)
    fed = engine.tokens_fed
    drafts = await propose(engine, sequence, range(5), ENDLESS, [FiresAt(position=3)])
    assert {d.stop for d in drafts} == {StopReason.ABORTED}
    assert all(len(d.token_ids) == 3 and d.verdict for d in drafts)
    assert engine.tokens_fed - fed == 2 * 5
    assert engine.in_use == {"parked": 1, "live": 0, "waiting": 0, "held": 0}
    engine.close(sequence)


async def test_a_cancelled_proposal_frees_its_rows_and_spares_the_others() -> None:
    engine = engine_for(shared_model())
    one, two = await engine.open(PROMPT), await engine.open(PROMPT[::-1])
    expected = ids(await propose(engine, two, range(4), ENDLESS))
    doomed = asyncio.create_task(propose(engine, one, range(4), ENDLESS))
    spared = asyncio.create_task(propose(engine, two, range(4), ENDLESS))
    for _ in range(6):
        await asyncio.sleep(0)
    assert engine.in_use["live"] == 8
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    assert engine.in_use["live"] == 4
    assert ids(await spared) == expected
    again = await propose(engine, one, [3], ENDLESS)
    assert len(again) == 1
    engine.close(one)
    engine.close(two)
    assert sum(engine.in_use.values()) == 0


async def test_closing_a_sequence_ends_its_proposal() -> None:
    engine = engine_for(shared_model())
    sequence = await engine.open(PROMPT)
    task = asyncio.create_task(propose(engine, sequence, range(3), ENDLESS))
    for _ in range(5):
        await asyncio.sleep(0)
    engine.close(sequence)
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(PolicyError, match="closed"):
        await propose(engine, sequence, [1])
    assert sum(engine.in_use.values()) == 0


async def test_non_finite_logits_are_a_typed_error_and_leak_nothing() -> None:
    model = random_model()
    engine = engine_for(model)
    sequence = await engine.open(PROMPT)
    with torch.no_grad():
        model.get_output_embeddings().weight[7] = float("nan")
    with pytest.raises(NonFiniteLogitsError, match="NaN or infinite"):
        await propose(engine, sequence, range(3), ENDLESS)
    with pytest.raises(NonFiniteLogitsError):
        await engine.open(PROMPT)
    engine.close(sequence)
    assert sum(engine.in_use.values()) == 0


@pytest.mark.parametrize("evictor", [None, RKV(budget=12, window=4, observation=2)])
async def test_one_sequence_of_nan_does_not_reach_those_that_use_its_rows_next(evictor) -> None:
    """A mask hides stale slots, but 0 * NaN is NaN: they are cleaned when it happens."""
    model = random_model()
    engine, clean = engine_for(model, evictor), engine_for(model, evictor)
    rare, long = 50, [5, 9, 13, 4, 22, 31] * 5
    weight = model.get_input_embeddings().weight
    kept = weight.detach().clone()

    async def outcome(of: Engine) -> tuple[list[list[int]], list[float]]:
        sequences = [await of.open(prompt) for prompt in (PROMPT, PROMPT[:3], long)]
        drafts = await asyncio.gather(*(propose(of, s, range(2), ENDLESS) for s in sequences))
        await asyncio.gather(*(of.extend(s, [7, 8, 9]) for s in sequences))
        scores = [float(s.logits.amax()) for s in sequences]
        for s in sequences:
            of.close(s)
        return [t for d in drafts for t in ids(d)], scores

    expected = await outcome(clean)
    with torch.no_grad():
        weight[rare] = float("nan")
        with pytest.raises(NonFiniteLogitsError):  # parked and temporary rows
            await engine.open([*long, rare])
        sick = await engine.open(long)
        sound = await engine.open(long)
        ahead = asyncio.ensure_future(propose(engine, sound, [0], ONE_MORE))
        weight[:] = float("nan")
        with pytest.raises(NonFiniteLogitsError):  # live rows
            await propose(engine, sick, range(4), ENDLESS)
        assert len(await ahead) == 1  # its only token needs no forward pass
        engine.close(sick)
        engine.close(sound)
        weight.copy_(kept)
    assert await outcome(engine) == expected


@pytest.mark.parametrize("queued", ["propose", "extend", "probe"])
async def test_closing_a_sequence_ends_what_still_waits_in_a_queue(queued: str) -> None:
    engine = engine_for(shared_model(), max_live_rows=1)
    busy, sequence = await engine.open(PROMPT), await engine.open(PROMPT)
    ahead = asyncio.ensure_future(propose(engine, busy, range(2), ENDLESS))
    await asyncio.sleep(0)
    work = {
        "propose": lambda: propose(engine, sequence, range(2), ENDLESS),
        "extend": lambda: engine.extend(sequence, [5]),
        "probe": lambda: engine.probe(sequence, [[5], [6]]),
    }[queued]
    waiting = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    engine.close(sequence)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, timeout=30)
    assert len(await ahead) == 2
    engine.close(busy)
    assert sum(engine.in_use.values()) == 0


def test_a_detector_that_exits_ends_its_own_proposal_only() -> None:
    """Not the driver of the engine, whose other callers would wait for ever."""

    async def run() -> None:
        engine = engine_for(shared_model())
        one, two = await engine.open(PROMPT), await engine.open(PROMPT)
        sound = asyncio.ensure_future(propose(engine, two, range(3), ENDLESS))
        with pytest.raises(SystemExit):
            await propose(engine, one, range(3), ENDLESS, [Exits()])
        assert len(await sound) == 3
        engine.close(one)
        engine.close(two)
        assert sum(engine.in_use.values()) == 0

    asyncio.run(run())


async def test_a_broken_detector_fails_its_own_proposal_only() -> None:
    engine = engine_for(shared_model())
    one, two = await engine.open(PROMPT), await engine.open(PROMPT)
    broken = propose(engine, one, range(3), ENDLESS, [FiresAt(position=2, fail=True)])
    results = await asyncio.gather(
        broken, propose(engine, two, range(3), ENDLESS), return_exceptions=True
    )
    assert isinstance(results[0], PolicyError)
    assert isinstance(results[0].__cause__, ZeroDivisionError)
    assert len(results[1]) == 3
    engine.close(one)
    engine.close(two)
    assert sum(engine.in_use.values()) == 0


async def test_a_failing_model_reaches_every_waiting_caller(monkeypatch) -> None:
    """Nothing hangs when a forward pass raises."""
    engine = engine_for(shared_model())
    sequences = [await engine.open(PROMPT) for _ in range(2)]

    def explode(*args: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(engine.adapter, "feed", explode)
    results = await asyncio.wait_for(
        asyncio.gather(
            propose(engine, sequences[0], range(3), ENDLESS),
            engine.extend(sequences[1], [4]),
            engine.probe(sequences[1], [[4]]),
            engine.open(PROMPT),
            return_exceptions=True,
        ),
        timeout=10,
    )
    assert [type(r) for r in results] == [MemoryError] * 4
    for s in sequences:
        engine.close(s)
    assert sum(engine.in_use.values()) == 0


def test_an_engine_serves_one_loop_after_the_other() -> None:
    engine = engine_for(shared_model())

    async def run() -> list[list[int]]:
        sequence = await engine.open(PROMPT)
        out = ids(await propose(engine, sequence, [1, 2]))
        engine.close(sequence)
        return out

    assert asyncio.run(run()) == asyncio.run(run())


async def test_an_evictor_that_keeps_everything_is_a_full_context_engine() -> None:
    engine = engine_for(shared_model(), NoEviction())
    sequence = await engine.open(PROMPT)
    assert engine.stats(sequence).bound is None
    assert engine.stats(sequence).physical_length == len(PROMPT)
    engine.close(sequence)


async def test_probe_equals_extending_each_continuation() -> None:
    engine = engine_for(shared_model())
    sequence = await engine.open(PROMPT)
    continuations = [[4, 8], [15], [16, 23, 42, 7], [15]]
    logprobs = await engine.probe(sequence, continuations, logprobs=True)
    for tokens, got in zip(continuations, logprobs, strict=True):
        twin = await engine.open(PROMPT)
        for token, value in zip(tokens, got.tolist(), strict=True):
            assert twin.logits is not None
            assert value == pytest.approx(float(twin.logits.log_softmax(-1)[token]), abs=1e-4)
            await engine.extend(twin, [token])
        engine.close(twin)
    assert engine.stats(sequence).logical_length == len(PROMPT)
    engine.close(sequence)


async def test_a_probed_fork_can_be_adopted() -> None:
    engine = engine_for(shared_model())
    sequence, twin = await engine.open(PROMPT), await engine.open(PROMPT)
    await engine.probe(sequence, [[4, 8], [15, 16, 23]], keep=True)
    engine.adopt(sequence, 1)
    await engine.extend(twin, [15, 16, 23])
    store, n = engine.parked.store, len(PROMPT) + 3
    assert engine.stats(sequence).logical_length == n
    torch.testing.assert_close(
        store.in_order("keys", sequence.row),
        store.in_order("keys", twin.row),
        rtol=1e-5,
        atol=1e-5,
    )
    engine.close(sequence)
    engine.close(twin)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    counts=st.lists(st.integers(1, 4), min_size=6, max_size=6),
)
@settings(max_examples=10)
def test_every_row_is_free_again_after_any_run(lengths: list[int], counts: list[int]) -> None:
    engine = engine_for(shared_model(), RKV(budget=5, window=3, observation=2), max_live_rows=5)

    async def one(length: int, n: int) -> None:
        sequence = await engine.open([3 + i % (VOCAB - 4) for i in range(length)])
        for step in range(2):
            drafts = await propose(engine, sequence, [step * 10 + i for i in range(n)])
            if drafts[-1].stop is not StopReason.EOS:
                engine.adopt(sequence, n - 1)
                await engine.extend(sequence, drafts[-1].token_ids[-1:])
        engine.close(sequence)

    async def run() -> None:
        await asyncio.gather(*(one(a, b) for a, b in zip(lengths, counts, strict=False)))

    asyncio.run(run())
    assert sum(engine.in_use.values()) == 0
    assert (engine.parked.store.length == 0).all()
