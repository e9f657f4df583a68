"""What every policy with an engine promises, whatever the engine; a module that imports these tests
supplies the fixture `policy`.

The laws are those of the views: forks are isolated, a commit is a decoding, verdicts are exact, a
failure stays with its caller, lengths are bounded and nothing leaks.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvrescue.detectors import EntropyDetector, GzipDetector, NgramDetector
from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Detector, TokenEvent
from kvrescue.detectors.context import in_context
from kvrescue.errors import AuditError, CapacityError, PolicyError
from kvrescue.policies.base import View
from kvrescue.policies.local import LocalPolicy
from kvrescue.types import CacheStats, Candidate, StopReason
from tests.engine.firing import Exits, FiresAt, Repeats, continuing
from tests.policies.parts import decode, foreign, greedy, idle, questions, step

WORDS = ("So 3 + 4 = 7.\n\n", "Then 7 + 5 = 12. Then 12 - 4 = 8.\n\n", "8 apples.\n\n")


def evictor_of(policy: LocalPolicy) -> Any:
    engine: Any = policy.engine
    return engine.evictor


def in_use(policy: LocalPolicy) -> dict[str, int]:
    """What the engine holds; promises last until a view is closed."""
    engine: Any = policy.engine
    return {name: count for name, count in engine.in_use.items() if name != "promised"}


def check_lengths(policy: LocalPolicy, stats: CacheStats) -> None:
    """Law 4, from outside."""
    evictor = evictor_of(policy)
    assert stats.physical_length + stats.dropped == stats.logical_length
    if evictor is None or not evictor.bounded:
        assert (stats.dropped, stats.evictions) == (0, 0)
        return
    assert stats.physical_length < evictor.bound + evictor.interval
    assert stats.peak_physical < evictor.bound + evictor.interval
    if stats.logical_length >= evictor.bound + evictor.interval:
        assert stats.evictions > 0
        assert stats.physical_length >= evictor.bound


# -- forks ----------------------------------------------------------------------------------------


async def test_a_candidate_depends_on_its_seed_alone(policy: LocalPolicy) -> None:
    """Laws 5 and 9: siblings, order and repetition change nothing."""
    view = await policy.open(questions(1)[0], "base")
    together = await view.propose(4, step(24), (), [11, 12, 13, 14], 512)
    alone = [(await view.propose(1, step(24), (), [s], 512))[0] for s in (14, 13, 12, 11)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone[::-1]]
    assert len({c.token_ids for c in together}) > 1
    assert [c.seed for c in together] == [11, 12, 13, 14]
    assert [c.index for c in together] == [0, 1, 2, 3]
    await view.close()
    assert idle(policy)


async def test_adopting_a_fork_equals_having_decoded_it_alone(policy: LocalPolicy) -> None:
    """Law 5: four commits of 16 tokens are one decoding of 64."""
    prompt = policy.prompt_ids(questions(1)[0])
    (whole,) = await decode(policy, prompt, 64)
    view = await policy.open(questions(1)[0], "base")
    pieces: list[int] = []
    while len(pieces) < len(whole):
        found = await view.propose(3, greedy(16), (), [1, 2, 3], 512)
        pieces += found[1].token_ids
        await view.commit(found[1])
        assert view.stats.logical_length == len(prompt) + len(pieces)
        check_lengths(policy, view.stats)
    assert pieces == whole
    await view.close()
    assert idle(policy)


async def test_together_or_one_by_one(policy: LocalPolicy) -> None:
    prompts = [policy.prompt_ids(q) for q in questions(8)]
    together = await asyncio.gather(*(decode(policy, p, 48) for p in prompts))
    alone = [await decode(policy, p, 48) for p in prompts]
    assert together == alone


# -- commits --------------------------------------------------------------------------------------


async def test_a_step_of_the_same_tokenizer_travels_as_tokens(policy: LocalPolicy) -> None:
    """Law 6: also when the text would be encoded otherwise."""
    view = await policy.open(questions(1)[0], "base")
    before = view.stats.logical_length
    text = foreign(policy, WORDS[1])
    await view.commit(text)
    assert view.stats.logical_length == before + len(text.token_ids)
    check_lengths(policy, view.stats)
    await view.close()
    assert idle(policy)


async def test_a_step_of_another_tokenizer_travels_as_text(policy: LocalPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    length, text = view.stats.logical_length, WORDS[0]
    await view.commit(Candidate("x", 0, text, (1, 2), StopReason.SEPARATOR, tokenizer="other"))
    ids = policy.tokenizer.encode(text, add_special_tokens=False)
    assert view.stats.logical_length == length + len(ids)
    await view.close()


async def test_a_step_without_tokens_only_drops_the_forks(policy: LocalPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    quiet = in_use(policy)
    expected = [c.token_ids for c in await view.propose(2, step(12), (), [1, 2], 512)]
    assert in_use(policy) != quiet or evictor_of(policy) is None
    before = view.stats
    await view.commit(Candidate("x", 0, "", (), StopReason.LENGTH, tokenizer="other"))
    assert (view.stats, in_use(policy)) == (before, quiet)
    assert [c.token_ids for c in await view.propose(2, step(12), (), [1, 2], 512)] == expected
    await view.close()
    assert idle(policy)


async def test_a_step_of_another_view_is_a_foreign_one(policy: LocalPolicy) -> None:
    """Although it has the name and the index of a fork that this view holds."""
    one, two = [await policy.open(questions(1)[0], "base") for _ in range(2)]
    (first,) = await one.propose(1, step(12), (), [1], 512)
    (second,) = await two.propose(1, step(12), (), [2], 512)
    assert first.token_ids != second.token_ids
    await one.commit(first)
    await two.commit(first)
    await two.commit(foreign(policy, WORDS[0]))
    await one.commit(foreign(policy, WORDS[0]))
    assert one.stats.logical_length == two.stats.logical_length
    after = [(await v.propose(1, greedy(12), (), [1], 512))[0] for v in (one, two)]
    if evictor_of(policy) is None:
        assert after[0].token_ids == after[1].token_ids
    for view in (one, two):
        check_lengths(policy, view.stats)
        await view.close()
    assert idle(policy)


# -- ends -----------------------------------------------------------------------------------------


async def test_a_step_ends_at_the_separator(policy: LocalPolicy) -> None:
    views = await asyncio.gather(*(policy.open(q, "base") for q in questions(4)))
    sampling = step(60, separator="\n\n")
    rounds = await asyncio.gather(*(v.propose(3, sampling, (), [1, 2, 3], 512) for v in views))
    found = [c for round_ in rounds for c in round_]
    ended = [c for c in found if c.stop is StopReason.SEPARATOR]
    assert ended
    assert all(c.text.endswith("\n\n") and "\n\n" not in c.text[:-2] for c in ended)
    assert all(c.stop in (StopReason.EOS, StopReason.LENGTH) or c in ended for c in found)
    for view in views:
        await view.close()


async def test_limits_name_their_reason(policy: LocalPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    (short,) = await view.propose(1, step(5), (), [3], 512)
    (cut,) = await view.propose(1, step(5), (), [3], 4)
    assert (short.stop, short.n_tokens) == (StopReason.LENGTH, 5)
    assert (cut.stop, cut.n_tokens) == (StopReason.CONTEXT, 4)
    assert cut.token_ids == short.token_ids[:4]
    await view.close()


async def test_a_context_can_be_filled_to_the_last_token(policy: LocalPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    filler = foreign(policy, WORDS[1] * 20)
    while view.room > 20:
        ids = filler.token_ids[: view.room - 20]
        await view.commit(_cut(policy, ids))
    while view.room:
        (found,) = await view.propose(1, step(16), (), [view.room], 512)
        assert found.n_tokens <= view.room
        await view.commit(found)
    assert view.stats.logical_length == policy.max_context
    check_lengths(policy, view.stats)
    with pytest.raises(PolicyError, match="no room"):
        await view.propose(1, step(16), (), [1], 512)
    with pytest.raises(CapacityError, match="does not fit the 0 left"):
        await view.commit(_cut(policy, filler.token_ids[:1]))
    await view.close()
    assert idle(policy)


def _cut(policy: LocalPolicy, ids: tuple[int, ...]) -> Candidate:
    fingerprint = policy.pieces.fingerprint
    return Candidate("x", 0, "", ids, StopReason.LENGTH, tokenizer=fingerprint)


# -- detectors ------------------------------------------------------------------------------------

DETECTORS = [
    EntropyDetector(threshold=1.5, guard=4, window=3),
    GzipDetector(window_chars=40, stride_chars=1, threshold=0.8),
    NgramDetector(max_period=4, min_count=2, min_span=2),
    in_context(Repeats(), continuing("+", "=")),
]


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.kind)
async def test_verdicts_are_those_of_the_whole_candidate(
    policy: LocalPolicy, detector: Detector
) -> None:
    """Law 8: the candidate without a detector, read by it afterwards, says where to stop."""
    engine: Any = policy.engine
    seeds, sampling = list(range(12)), step(60)
    view = await policy.open(questions(1)[0], "base")
    free = await view.propose(12, sampling, (), seeds, 512)
    screened = await view.propose(12, sampling, (detector,), seeds, 512)
    fired = 0
    for whole, seen in zip(free, screened, strict=True):
        bank, position = DetectorBank([detector]), 0
        for token, entropy in zip(whole.token_ids, whole.entropies, strict=True):
            if token in engine.eos:
                break
            position += 1
            if bank.update(TokenEvent(token, policy.pieces.decode([token]), entropy)):
                break
        expected = bank.verdict
        if expected is None:
            assert seen.verdict is None
            assert seen.token_ids == whole.token_ids
            continue
        fired += 1
        assert seen.verdict is not None
        assert (seen.verdict.position, seen.verdict.char_position) == (
            expected.position,
            expected.char_position,
        )
        assert seen.verdict.value == pytest.approx(expected.value, abs=1e-3)
        assert seen.stop is StopReason.ABORTED
        assert seen.token_ids == whole.token_ids[:position]
    assert fired
    await view.close()
    assert idle(policy)


async def test_aborted_candidates_are_not_held(policy: LocalPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    before = in_use(policy)
    found = await view.propose(4, step(20), (FiresAt(position=3),), [1, 2, 3, 4], 512)
    assert {c.stop for c in found} == {StopReason.ABORTED}
    assert [c.n_tokens for c in found] == [3] * 4
    assert in_use(policy) == before
    await view.close()
    assert idle(policy)


# -- failures -------------------------------------------------------------------------------------


async def test_a_broken_detector_fails_its_proposal_alone(policy: LocalPolicy) -> None:
    first, second = [await policy.open(q, "base") for q in questions(2)]
    bad, good = await asyncio.gather(
        first.propose(2, step(20), (FiresAt(position=3, fail=True),), [1, 2], 512),
        second.propose(2, step(20), (), [1, 2], 512),
        return_exceptions=True,
    )
    assert isinstance(bad, PolicyError)
    assert f"detector {FiresAt.kind!r} failed: ZeroDivisionError" in str(bad)
    assert isinstance(bad.__cause__, ZeroDivisionError)
    assert isinstance(good, list)
    await first.close()
    await second.close()
    assert idle(policy)


def test_a_detector_that_exits_fails_its_proposal_alone(policy: LocalPolicy) -> None:
    async def run() -> None:
        first, second = [await policy.open(q, "base") for q in questions(2)]
        good = asyncio.ensure_future(second.propose(2, step(20), (), [1, 2], 512))
        with pytest.raises(SystemExit):
            await first.propose(2, step(20), (Exits(),), [1, 2], 512)
        assert len(await good) == 2
        await first.close()
        await second.close()

    asyncio.run(run())
    assert idle(policy)


async def test_closing_and_cancelling_free_at_once(policy: LocalPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    quiet = in_use(policy)
    task = asyncio.create_task(view.propose(3, step(150), (), [1, 2, 3], 512))
    for _ in range(6):
        await asyncio.sleep(0)
    assert in_use(policy) != quiet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_use(policy) == quiet
    task = asyncio.create_task(view.propose(3, step(150), (), [1, 2, 3], 512))
    for _ in range(6):
        await asyncio.sleep(0)
    await view.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert idle(policy)
    with pytest.raises(PolicyError, match="closed"):
        await view.propose(1, step(4), (), [1], 512)
    await view.close()


async def test_wrong_counts_are_refused(policy: LocalPolicy) -> None:
    view = await policy.open(questions(1)[0], "base")
    for n, seeds in ((0, []), (2, [1]), (1, [1, 2])):
        with pytest.raises(PolicyError, match="seeds"):
            await view.propose(n, step(4), (), seeds, 512)
    await view.close()
    assert idle(policy)


# -- any order of operations ----------------------------------------------------------------------

OPERATIONS = st.one_of(
    st.tuples(st.just("own"), st.integers(1, 3), st.integers(1, 20)),
    st.tuples(st.just("foreign"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("screened"), st.integers(1, 3), st.integers(1, 8)),
)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.lists(OPERATIONS, max_size=6), min_size=1, max_size=3), st.integers(0, 99))
def test_lengths_hold_in_any_order_of_operations(
    policy: LocalPolicy, runs: list[list[tuple[str, int, int]]], seed: int
) -> None:
    """Laws 3, 4, 5 and 10, for trajectories side by side."""

    async def run(number: int, operations: list[tuple[str, int, int]]) -> None:
        question = questions(3)[number]
        length = len(policy.prompt_ids(question))
        view = await policy.open(question, "base")
        for turn, operation in enumerate(operations):
            length += await apply(policy, view, operation, seed + 10 * turn)
            assert view.stats.logical_length == length
            check_lengths(policy, view.stats)
        await view.close()

    async def main() -> None:
        await asyncio.gather(*(run(i, operations) for i, operations in enumerate(runs)))

    asyncio.run(main())
    assert idle(policy)


async def apply(policy: LocalPolicy, view: View, operation: tuple[str, int, int], seed: int) -> int:
    """Tokens that were committed."""
    kind, which, count = operation
    if kind == "foreign":
        chosen = foreign(policy, WORDS[which])
    else:
        detectors = (FiresAt(position=5),) if kind == "screened" else ()
        seeds = [seed + i for i in range(which)]
        found = await view.propose(which, step(count), detectors, seeds, 512)
        alive = [c for c in found if c.verdict is None]
        assert all(c.n_tokens <= count for c in found)
        if not alive:
            return 0
        chosen = alive[-1]
    await view.commit(chosen)
    return len(chosen.token_ids)


async def test_an_eviction_that_never_fired_is_an_audit_error(policy: LocalPolicy) -> None:
    """Law 10, where the counters say that nothing was ever dropped."""
    engine: Any = policy.engine
    evictor, real = evictor_of(policy), engine.stats
    view = await policy.open(questions(3)[2], "base")
    await view.commit(foreign(policy, WORDS[1] * 4))

    def never_fired(sequence: Any) -> CacheStats:
        length = real(sequence).logical_length
        return CacheStats(length, length, length, bound=evictor and evictor.bound)

    engine.stats = never_fired
    try:
        if evictor is None:
            await view.close()
        else:
            with pytest.raises(AuditError, match="never fired"):
                await view.close()
    finally:
        del engine.stats
    assert idle(policy)
