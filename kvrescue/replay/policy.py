"""ReplayPolicy: gives recorded candidates back, screened by the detectors of now."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Final

from kvrescue.detectors.bank import DetectorBank
from kvrescue.detectors.base import Detector, Source, TokenEvent
from kvrescue.errors import CapacityError, PolicyError, ReplayError
from kvrescue.policies.base import Policy, Sampling, View
from kvrescue.replay.recording import Failures, Recorded, Recording, Round, at, shown, untold
from kvrescue.replay.specs import AfterDivergence, ReplayPolicySpec, Verdicts
from kvrescue.seeding import candidate_seed
from kvrescue.types import CacheStats, Candidate, Question, SolutionStop, StopReason, Verdict

__all__ = ["ReplayPolicy", "ReplayView"]

_ANY: Final = 1 << 40
"""Where a recording does not tell a limit: more than any model has."""


class ReplayPolicy(Policy):
    """Proposes what was recorded: per question, seed and round.

    Needs no model. Detectors read the recorded tokens: one that fires earlier cuts the candidate
    there. A candidate that was aborted when it was recorded, and would not be now, has no further
    text: it stays aborted, with a verdict by `replay` that says so, and cannot be chosen.

    Args:
        trace: the path of a trace, or a `Recording`.
        proposer: see `ReplayPolicySpec`.
        verdicts: see `ReplayPolicySpec`.
        after_divergence: see `ReplayPolicySpec`.

    Raises:
        ReplayError: there is no such file, or it tells of no trajectory.
        RunError: it is damaged, or no trace.
        ConfigError: an option is wrong.
    """

    def __init__(
        self,
        trace: str | os.PathLike[str] | Recording,
        *,
        proposer: str | None = None,
        verdicts: Verdicts = "anew",
        after_divergence: AfterDivergence = "error",
    ) -> None:
        ReplayPolicySpec(  # for its checks
            trace="recording",
            proposer=proposer,
            verdicts=verdicts,
            after_divergence=after_divergence,
        )
        self.recording = trace if isinstance(trace, Recording) else Recording.read(trace)
        self.proposer = proposer
        self.verdicts = verdicts
        self.after_divergence = after_divergence
        self.divergences: list[ReplayError] = []
        """What led where the recording does not, with `question_id`, `seed` and `step`; with
        `after_divergence` "stop" this is where it is told."""

    @property
    def source(self) -> Source:
        return self.source_of(self.proposer or "")

    def source_of(self, name: str) -> Source:
        """What the recorded proposer's detectors were fed; where that is not told, everything."""
        told = self.proposer or name
        found = [t.started.sources[told] for t in self._all() if told in t.started.sources]
        if found:
            return max(found, key=lambda source: source.vocab_size)
        return Source(vocab_size=_ANY, max_step_tokens=_ANY)

    async def open(self, question: Question, name: str) -> ReplayView:
        return ReplayView(self, question, name)

    def _all(self) -> tuple[Recorded, ...]:
        return self.recording.trajectories


class ReplayView(View):
    """One trajectory of a recording; which of them is known with the first seeds.

    Raises:
        ReplayError: the recording does not hold the question or the proposer, or holds runs of
            the question that begin differently.
        PolicyError: the view could not be opened when it was recorded.
    """

    def __init__(self, policy: ReplayPolicy, question: Question, name: str) -> None:
        self.policy, self.question, self.name = policy, question, name
        self.told = policy.proposer or name
        """Name of the proposer in the recording."""
        runs = policy.recording.of(question)
        self._runs = [run for run in runs if self.told in run.started.proposers]
        if not self._runs:
            names = ", ".join(map(repr, runs[0].started.proposers))
            raise self._error(
                f"{policy.recording.name}: question {question.id!r} was not drawn from a proposer "
                f"{self.told!r} but from {names}; name one of them with the option proposer"
            )
        self._run = self._runs[0]
        """Until the seed is known, the first: all begin alike."""
        self._seeded = False
        beginnings = {
            (run.started.caches.get(self.told), run.started.rooms.get(self.told))
            for run in self._runs
        }
        if len(beginnings) > 1:
            raise self._error(
                f"{policy.recording.name}: question {question.id!r} was recorded in different "
                "settings; keep each in a file of its own"
            )
        self._failures = self._run.failures(self.told)
        if self._failures.opening is not None:
            raise PolicyError(self._opening())
        self._stats = self._run.started.caches.get(self.told, CacheStats())
        self._prompt = self._stats.logical_length
        self._draws = 0
        self._commits = 0
        self._diverged: ReplayError | None = None

    def _opening(self) -> str:
        """How opening failed, from the first run that tells: those that broke off do not."""
        found = [str(run.failures(self.told).opening) for run in self._runs]
        return next((message for message in found if message != untold("opening")), found[0])

    # -- drawing --------------------------------------------------------------------------------

    async def propose(
        self,
        n: int,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        max_tokens: int,
    ) -> list[Candidate]:
        if not self._seeded:
            self._choose_run(seeds[0])
        if self._diverged is not None:
            raise self._diverged
        draw, self._draws = self._draws, self._draws + 1
        if draw in self._failures.drawing:
            raise PolicyError(self._failures.drawing[draw])
        round_ = self._round(draw)
        own = [candidate for candidate in round_.candidates if candidate.policy == self.told]
        here = at(self._run, round_.step)
        if n > len(own):
            raise self._error(
                f"{here}: {len(own)} candidates of {self.told!r} were recorded, {n} are asked for; "
                "ask for at most as many",
                round_.step,
            )
        cap = min(max_tokens, sampling.max_step_tokens)
        for candidate in own[:n]:
            if candidate.n_tokens > cap:
                raise self._error(
                    f"{here}: {shown(candidate)} was recorded with {candidate.n_tokens} tokens, at "
                    f"most {cap} are asked for; raise the limit to what it was",
                    round_.step,
                )
        return [self._given_back(candidate, detectors, here) for candidate in own[:n]]

    def _choose_run(self, seed: int) -> None:
        """Which run it is follows from the seed of its very first candidate."""
        id_, name = self.question.id, self.name
        found = [run for run in self._runs if candidate_seed(run.seed, id_, 0, name, 0) == seed]
        if not found:
            known = ", ".join(map(str, sorted({run.seed for run in self._runs})))
            raise self._error(
                f"{self.policy.recording.name}: question {id_!r} was recorded under the seeds "
                f"{known}; another one is asked for"
            )
        self._run = found[0]
        if any(run.rounds != self._run.rounds for run in found[1:]):
            raise self._error(
                f"{self._run.where}: recorded {len(found)} times, with different candidates; keep "
                "each in a file of its own"
            )
        self._seeded = True
        self._failures = self._run.failures(self.told)

    def _round(self, draw: int) -> Round:
        run, step = self._run, self._commits
        if draw < len(run.rounds) and run.rounds[draw].step == step:
            return run.rounds[draw]
        if draw >= len(run.rounds):
            end = run.finished
            why = f"ended there ({end.solution.stop.value})" if end else "breaks off there"
            raise self._diverge(
                step, f"the recording {why}; another round is asked for: were the limits others?"
            )
        committed = run.steps[step].step.candidate if step < len(run.steps) else None
        was = f"{shown(committed)} was committed" if committed else "it was"
        raise self._diverge(step, f"when recorded {was}; now the step is drawn once more")

    def _given_back(
        self, candidate: Candidate, detectors: Sequence[Detector], here: str
    ) -> Candidate:
        labelled = dataclasses.replace(candidate, policy=self.name)
        recorded = candidate.verdict
        if recorded is not None and not detectors:
            raise self._error(
                f"{here}: {shown(candidate)} was aborted by {recorded.detector} when it was "
                "recorded; nothing screens it now, and how it would have gone on is not recorded; "
                "give the proposer its detectors",
                self._commits,
            )
        if self.policy.verdicts == "recorded" or not detectors:
            return labelled
        verdict = self._screen(candidate, detectors, here)
        if verdict is None:
            return labelled if recorded is None else _open_ended(labelled, recorded)
        read = min(verdict[0], candidate.n_tokens)
        whole = read == candidate.n_tokens
        return dataclasses.replace(
            labelled,
            text=candidate.text if whole else candidate.text[: candidate.char_ends[read - 1]],
            token_ids=candidate.token_ids[:read],
            entropies=candidate.entropies[:read],
            char_ends=candidate.char_ends[:read],
            stop=StopReason.ABORTED,
            verdict=verdict[1],
        )

    def _screen(
        self, candidate: Candidate, detectors: Sequence[Detector], here: str
    ) -> tuple[int, Verdict] | None:
        """The first verdict and after how many tokens it came."""
        if len(candidate.char_ends) != candidate.n_tokens:
            raise self._error(
                f"{here}: {shown(candidate)} was recorded without the places of its tokens in the "
                "text (char_ends), so that detectors cannot read it again; record it again, or "
                "keep the verdicts with verdicts = 'recorded'",
                self._commits,
            )
        bank = DetectorBank(detectors)
        begin = 0
        for place, (token, end) in enumerate(
            zip(candidate.token_ids, candidate.char_ends, strict=True)
        ):
            if candidate.stop is StopReason.EOS and place == candidate.n_tokens - 1:
                break  # no detector reads it
            known = place < len(candidate.entropies)
            entropy = candidate.entropies[place] if known else math.nan
            verdict = bank.update(TokenEvent(token, candidate.text[begin:end], entropy))
            if verdict is not None:
                return place + 1, verdict
            begin = end
        return None

    # -- advancing ------------------------------------------------------------------------------

    async def commit(self, candidate: Candidate) -> None:
        step, self._commits = self._commits, self._commits + 1
        if self._diverged is not None:
            return
        if step in self._failures.advancing:
            raise PolicyError(self._failures.advancing[step])
        event = self._run.rounds[self._draws - 1].committed
        if event is None:
            self._diverge(step, f"when recorded nothing was committed, now {shown(candidate)}")
            return
        winner = event.step.candidate
        if not self._same(candidate, winner):
            self._diverge(step, f"recorded {shown(winner)}, chosen now {shown(candidate)}")
            return
        if candidate.policy != self.name and self._had_no_room(step):
            raise CapacityError(f"{self.name}: the step did not fit when it was recorded")
        self._stats = event.caches.get(self.told, self._stats)

    def _same(self, candidate: Candidate, winner: Candidate) -> bool:
        """Whether what follows is what was recorded: the same text and tokens, and as before an
        own step or a foreign one."""
        mine, was_mine = candidate.policy == self.name, winner.policy == self.told
        return (mine, candidate.text, candidate.tokenizer, candidate.token_ids) == (
            was_mine,
            winner.text,
            winner.tokenizer,
            winner.token_ids,
        )

    def _had_no_room(self, step: int) -> bool:
        """Whether the recorded trajectory ended because this view could not read its last step."""
        end = self._run.finished
        if end is None or end.solution.stop is not SolutionStop.CONTEXT:
            return False
        if step != len(self._run.steps) - 1:
            return False
        before, after = self._run.caches(step), self._run.caches(step + 1)
        writer = self._run.steps[step].step.candidate.policy

        def unread(name: str) -> bool:
            known = name in before and name in after
            return known and before[name].logical_length == after[name].logical_length

        # Who wrote the step has room for it: where it did not read it, nobody was asked to.
        return unread(self.told) and not unread(writer)

    async def close(self) -> None:
        message = self._failures.closing
        self._failures = Failures()
        if message is not None and self._diverged is None:
            raise PolicyError(message)

    @property
    def stats(self) -> CacheStats:
        """As recorded; after a divergence as before it."""
        return self._stats

    @property
    def room(self) -> int:
        at_end = self._seeded and self._draws >= len(self._run.rounds)
        if self.policy.after_divergence == "stop" and (self._diverged is not None or at_end):
            return 0
        room = self._run.started.rooms.get(self.told, _ANY)
        return room - (self._stats.logical_length - self._prompt)

    # -- errors ---------------------------------------------------------------------------------

    def _error(
        self, message: str, step: int | None = None, *, diverged: bool = False
    ) -> ReplayError:
        seed = self._run.seed if step is not None else None
        return ReplayError(
            message, question_id=self.question.id, seed=seed, step=step, diverged=diverged
        )

    def _diverge(self, step: int, what: str) -> ReplayError:
        """Note a divergence; the error is raised when something is asked that follows from it."""
        error = self._error(
            f"{at(self._run, step)}: {what}. What follows is not recorded: run it with the models, "
            "or end such trajectories there with after_divergence = 'stop'",
            step,
            diverged=True,
        )
        self._diverged = error
        places = [(e.question_id, e.seed, e.step) for e in self.policy.divergences]
        if (error.question_id, error.seed, error.step) not in places:
            self.policy.divergences.append(error)
        return error


def _open_ended(candidate: Candidate, recorded: Verdict) -> Candidate:
    """A candidate whose recording ends with an abort that no longer happens."""
    reason = (
        f"the recording ends here: {recorded.detector} aborted it, which no detector of this "
        "replay does; how it would have gone on is not known"
    )
    return dataclasses.replace(
        candidate, verdict=dataclasses.replace(recorded, detector="replay", reason=reason)
    )
