"""Wrong policies and views: each is caught by the law it breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from kvrescue.detectors.base import Detector
from kvrescue.errors import CapacityError, ConfigError
from kvrescue.policies.base import Policy
from kvrescue.sampling import Sampling
from kvrescue.testing import check_policy
from kvrescue.testing.drawing import stop_fault
from kvrescue.testing.fakes import FakePolicy, FakeView, Habits
from kvrescue.types import CacheStats, Candidate, Question, StopReason
from tests.kit.mutants import caught

HABITS = Habits(words=("a b c d\n\n", "e f g\n\n", "h i\n\n", "j k l m n\n\n"), eos=0.0)


class View(FakeView):
    """A correct view, which the mutants spoil."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        sampling, detectors, max_tokens = rest
        return await FakeView.propose(self, n, sampling, detectors, seeds, max_tokens)

    async def propose(
        self,
        n: int,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        max_tokens: int,
    ) -> list[Candidate]:
        return await self.drawn(n, seeds, (sampling, detectors, max_tokens))


def policy(kind: type[FakeView], **kwargs: Any) -> Policy:
    class Spoiled(FakePolicy):
        async def open(self, question: Question, name: str) -> FakeView:
            plain = await super().open(question, name)
            return kind(self, name, plain.number)

    return Spoiled(HABITS, **kwargs)


class Leaks(View):
    """Forks are freed by a commit, not by closing."""

    forks = 0

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        self.policy.in_flight += n - self.forks
        self.forks = n
        return await super().drawn(n, seeds, rest)

    async def commit(self, candidate: Candidate) -> None:
        self.policy.in_flight -= self.forks
        self.forks = 0
        await super().commit(candidate)


class RunsOut(View):
    """The same leak in a policy that tells nothing: forty proposals, and no more."""

    slots: ClassVar[list[int]] = [40]

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        self.slots[0] -= 1
        if self.slots[0] < 0:
            raise CapacityError("no slot left")
        return await super().drawn(n, seeds, rest)


class ForkWrites(View):
    """A fork writes into its parent."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        found = await super().drawn(n, seeds, rest)
        self.length += found[0].n_tokens
        return found


class SiblingStays(View):
    """What siblings drew stays behind when one of them is adopted."""

    siblings = ""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        found = await super().drawn(n, seeds, rest)
        self.siblings = "".join(c.text for c in found)
        return found

    async def commit(self, candidate: Candidate) -> None:
        await super().commit(candidate)
        self.history.append(self.siblings if candidate.policy == self.name else "")


class Sibling(View):
    """A candidate follows from how many are drawn."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        found = await super().drawn(n, [seed + n for seed in seeds], rest)
        return [replace(c, seed=seed) for c, seed in zip(found, seeds, strict=True)]


class Chance(View):
    dice = random.Random(1)

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        found = await super().drawn(n, [self.dice.randrange(99) for _ in seeds], rest)
        return [replace(c, seed=seed) for c, seed in zip(found, seeds, strict=True)]


class Unlabelled(View):
    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        return [replace(c, policy="me") for c in await super().drawn(n, seeds, rest)]


class NoLimit(View):
    """Knows max_step_tokens, not max_tokens."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        sampling, detectors, _ = rest
        return await super().drawn(n, seeds, (sampling, detectors, 512))


class WrongReason(View):
    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        cut = {StopReason.LENGTH: StopReason.CONTEXT}
        return [
            replace(c, stop=cut.get(c.stop, c.stop)) for c in await super().drawn(n, seeds, rest)
        ]


class Unscreened(View):
    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        sampling, _, max_tokens = rest
        return await super().drawn(n, seeds, (sampling, (), max_tokens))


class LateStop(View):
    """Reads two tokens at a time: the verdict's position is not where the candidate ends."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        sampling, _, max_tokens = rest
        free = await super().drawn(n, seeds, (sampling, (), max_tokens))
        found = await super().drawn(n, seeds, rest)
        return [
            replace(whole, stop=c.stop, verdict=c.verdict) if c.verdict else c
            for whole, c in zip(free, found, strict=True)
        ]


class LosesOne(View):
    """An own step's last token is never fed."""

    async def commit(self, candidate: Candidate) -> None:
        await super().commit(candidate)
        self.length -= candidate.policy == self.name


class IgnoresForeign(View):
    async def commit(self, candidate: Candidate) -> None:
        if not candidate.tokenizer:
            await super().commit(candidate)


class Miscounts(View):
    @property
    def stats(self) -> CacheStats:
        return CacheStats(self.length, self.length - 1, self.length)


class Unbounded(View):
    """Says that it is bounded, and is not."""

    @property
    def stats(self) -> CacheStats:
        return CacheStats(self.length, self.length, self.length, bound=4)


class ClosedOnce(View):
    async def close(self) -> None:
        if not self.open:
            raise RuntimeError("closed already")
        await super().close()


class Global(View):
    """The history belongs to the policy."""

    async def commit(self, candidate: Candidate) -> None:
        await super().commit(candidate)
        vars(self.policy).setdefault("all", []).append(candidate.text)
        self.history = self.policy.all  # type: ignore[attr-defined]


class Interleaved(View):
    """The newest call's state is used by whoever comes back first."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        self.policy.seeds = [seed + self.number for seed in seeds]  # type: ignore[attr-defined]
        vars(self.policy)["busy"] = vars(self.policy).get("busy", 0) + 1
        try:
            await asyncio.sleep(0)
            shift = vars(self.policy)["busy"] - 1
            found = await super().drawn(n, [seed + shift for seed in seeds], rest)
        finally:
            vars(self.policy)["busy"] -= 1
        return [replace(c, seed=seed) for c, seed in zip(found, seeds, strict=True)]


class Advances(View):
    """Drawing moves the view on, whoever is committed."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        found = await super().drawn(n, seeds, rest)
        self.history.append("drawn")
        return found


class RefusesForeign(View):
    async def commit(self, candidate: Candidate) -> None:
        if candidate.tokenizer:
            raise ValueError("foreign tokens")
        await super().commit(candidate)


class Changes(View):
    def one(self, candidate: Candidate) -> Candidate:
        return candidate

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        return [self.one(c) for c in await super().drawn(n, seeds, rest)]


class TwoSteps(Changes):
    def one(self, candidate: Candidate) -> Candidate:
        return replace(candidate, text=candidate.text.replace(" ", "\n\n", 1))


class AlwaysEos(Changes):
    def one(self, candidate: Candidate) -> Candidate:
        whole = candidate.stop is StopReason.SEPARATOR
        return replace(candidate, stop=StopReason.EOS) if whole else candidate


class NeverEos(Changes):
    def one(self, candidate: Candidate) -> Candidate:
        whole = candidate.stop is StopReason.SEPARATOR
        return replace(candidate, text=candidate.text.strip()) if whole else candidate


class CutEarly(Changes):
    """Says that a limit cut it, at no limit."""

    def one(self, candidate: Candidate) -> Candidate:
        whole = candidate.stop is StopReason.SEPARATOR
        text = candidate.text.strip()
        return replace(candidate, text=text, stop=StopReason.LENGTH) if whole else candidate


class StopsBesides(Changes):
    """A verdict beside another stop reason."""

    def one(self, candidate: Candidate) -> Candidate:
        return replace(candidate, stop=StopReason.EOS) if candidate.verdict else candidate


class OnlyTexts(Changes):
    def one(self, candidate: Candidate) -> Candidate:
        return candidate.text  # type: ignore[return-value]


class WrongEnds(Changes):
    def one(self, candidate: Candidate) -> Candidate:
        return replace(candidate, char_ends=(len(candidate.text) + 1,) * candidate.n_tokens)


class NotAsync(View):
    def propose(self, *args: Any, **kwargs: Any) -> list[Candidate]:  # type: ignore[override]
        return []


class LeavesTasks(View):
    """Waits for news of its view for ever."""

    async def drawn(self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]) -> list[Candidate]:
        if not hasattr(self, "task"):
            self.task = asyncio.ensure_future(asyncio.Event().wait())
        return await super().drawn(n, seeds, rest)


@pytest.mark.parametrize(
    ("view", "law"),
    [
        (Leaks, "close"),
        (ForkWrites, "fork-isolation"),
        (SiblingStays, "fork-isolation"),
        (Sibling, "seed-alone"),
        (Chance, "seed-alone"),
        (Unlabelled, "candidates"),
        (NoLimit, "limits"),
        (WrongReason, "limits"),
        (Unscreened, "verdict-stops"),
        (LateStop, "verdict-stops"),
        (LosesOne, "commit"),
        (IgnoresForeign, "commit"),
        (Miscounts, "stats"),
        (Unbounded, "stats"),
        (Interleaved, "independent-views"),
        (Advances, "fork-isolation"),
        (RefusesForeign, "runs"),
        (TwoSteps, "stop-reason"),
        (AlwaysEos, "stop-reason"),
        (NeverEos, "stop-reason"),
        (CutEarly, "stop-reason"),
        (StopsBesides, "candidates"),
        (OnlyTexts, "candidates"),
        (WrongEnds, "candidates"),
        (NotAsync, "runs"),
        (LeavesTasks, "close"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_view_that_is_wrong(view: type[FakeView], law: str) -> None:
    caught(lambda: check_policy(lambda: policy(view), examples=20), law)


@pytest.mark.parametrize(("view", "law"), [(ClosedOnce, "close"), (RunsOut, "runs")])
def test_a_view_that_fails(view: type[FakeView], law: str) -> None:
    caught(lambda: check_policy(lambda: policy(view), examples=20), law)


def test_what_a_proposal_that_is_no_coroutine_is_told() -> None:
    found = caught(lambda: check_policy(lambda: policy(NotAsync)), "runs")
    assert "`async def propose`" in found.expected


def test_a_proposal_that_does_not_end() -> None:
    class Hangs(View):
        async def drawn(self, *args: Any) -> list[Candidate]:
            await asyncio.Event().wait()
            return []

    found = caught(lambda: check_policy(lambda: policy(Hangs), seconds=0.05), "ends")
    assert "`propose` had not ended after 0.05 seconds" in found.seen


@pytest.mark.parametrize("lines", [2, 60])
def test_one_view_for_all(lines: int) -> None:
    """However soon its lines run out."""

    class Lines(View):
        async def drawn(
            self, n: int, seeds: Sequence[int], rest: tuple[Any, ...]
        ) -> list[Candidate]:
            self.policy.habits = replace(HABITS, words=(f"{min(len(self.history), lines)} a\n\n",))
            return await super().drawn(n, seeds, rest)

    class One(FakePolicy):
        view: FakeView | None = None

        async def open(self, question: Question, name: str) -> FakeView:
            self.view = self.view or Lines(self, name, 0)
            return self.view

    caught(lambda: check_policy(lambda: One(HABITS)), "independent-views")


def test_a_length_that_all_views_share() -> None:
    class Total(View):
        """Three views have less room than two."""

        def __init__(self, policy: FakePolicy, name: str, number: int) -> None:
            super().__init__(policy, name, number)
            self.taken = max(0, policy.in_flight - 2)

        @property
        def room(self) -> int:
            return super().room - self.taken

    caught(lambda: check_policy(lambda: policy(Total)), "independent-views")


def test_views_that_cannot_be_opened_for_ever() -> None:
    class Few(FakePolicy):
        async def open(self, question: Question, name: str) -> FakeView:
            if self.log.opened > 5:
                raise RuntimeError("no slots")
            return await super().open(question, name)

    found = caught(lambda: check_policy(lambda: Few(HABITS)), "close")
    assert "no slots" in found.seen


def test_a_task_that_outlives_its_policy() -> None:
    class Waits(FakePolicy):
        async def open(self, question: Question, name: str) -> FakeView:
            if not hasattr(self, "task"):
                self.task = asyncio.ensure_future(asyncio.Event().wait())
            return await super().open(question, name)

    class Ends(Waits):
        async def aclose(self) -> None:
            self.task.cancel()

    caught(lambda: check_policy(lambda: Waits(HABITS)), "close")
    check_policy(lambda: Ends(HABITS), examples=2)


@pytest.mark.parametrize(
    ("text", "stop", "carry", "right"),
    [
        ("a\n\n", "separator", "", True),
        ("a\n\n\n", "separator", "", True),  # one token may hold what follows
        ("\n\n", "separator", "", True),
        ("\nb\n\n", "separator", "a\n", True),
        ("\n\nb", "eos", "a\n", True),  # the separator ends the step that was cut
        ("a\n", "length", "", True),
        ("a", "eos", "", True),
        ("a\n\n", "aborted", "", True),
        ("a\n\nb\n\n", "separator", "", False),
        ("a\n\nb", "length", "", False),
        ("a\n\nb", "aborted", "", False),
        ("\n\nb", "eos", "", False),
        ("a\n\n", "eos", "", False),
        ("a", "separator", "", False),
    ],
)
def test_where_a_step_ends(text: str, stop: str, carry: str, right: bool) -> None:
    candidate = Candidate("base", 0, text, (1,), StopReason(stop))
    assert (not stop_fault(candidate, "\n\n", carry)) == right


def test_a_policy_that_remembers() -> None:
    class Warms(FakePolicy):
        """The prompt is encoded once, and shorter after that."""

        async def open(self, question: Question, name: str) -> FakeView:
            view = await super().open(question, name)
            view.length -= self.log.opened > 1
            return view

    caught(lambda: check_policy(lambda: Warms(HABITS)), "reopen")


def test_right_ones_pass() -> None:
    made: list[FakePolicy] = []

    def make() -> FakePolicy:
        made.append(FakePolicy())
        return made[-1]

    check_policy(make, examples=30)
    assert made[0].finished
    check_policy(policy(View), examples=30)


def test_a_remote_policy_without_a_cache_to_measure() -> None:
    class Remote(View):
        """A server tells nothing of its cache."""

        @property
        def stats(self) -> CacheStats:
            return CacheStats()

    check_policy(policy(Remote), examples=20)

    class Unseeded(Remote, Chance):
        pass

    caught(lambda: check_policy(policy(Unseeded), examples=20), "seed-alone")
    check_policy(policy(Unseeded), seeded=False, examples=20)


@pytest.mark.parametrize("wrong", [FakePolicy, "torch", None, lambda: 3])
def test_wrong_usage_is_a_configuration_error(wrong: object) -> None:
    with pytest.raises(ConfigError):
        check_policy(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="interval = 0"):
        check_policy(FakePolicy(), interval=0)
