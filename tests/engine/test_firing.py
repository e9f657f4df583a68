"""Evictions that are told: complete, true, at no cost to who does not listen."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from kvrescue import Limits, Proposer, Rescue, Sampling, hookimpl
from kvrescue.engine.slots import SlotStore
from kvrescue.errors import PluginError
from kvrescue.evaluation.bill import bills
from kvrescue.events import EvictionFired, StepCommitted
from kvrescue.evictors.firing import Firing
from kvrescue.evictors.rkv import RKV
from kvrescue.plugins import Plugins
from kvrescue.policies import TorchPolicy
from kvrescue.selector import EvictionObserver
from kvrescue.types import Question, Solution
from tests.core.fakes import FakeScorer

BUDGET, WINDOW = 16, 12
PROBLEM = bills("test", seed=3, count=1)[0].question


@functools.cache
def base() -> TorchPolicy:
    return TorchPolicy("tiny/base", evictor=RKV(budget=BUDGET, window=WINDOW))


@functools.cache
def helper() -> TorchPolicy:
    return TorchPolicy("tiny/helper")


def rescue(
    listeners: Sequence[EvictionObserver] = (), plugins: Plugins | None = None, **options: object
) -> Rescue:
    return Rescue(
        [Proposer(base(), 2), Proposer(helper(), 1, name="helper")],
        FakeScorer(),
        sampling=Sampling(max_step_tokens=8),
        limits=Limits(max_steps=4),
        plugins=plugins or Plugins(),
        eviction_observers=listeners,
        **options,  # type: ignore[arg-type]
    )


def solve(listeners: Sequence[EvictionObserver] = (), seed: int = 1) -> Solution:
    with rescue(listeners) as solver:
        return solver.solve(PROBLEM, seed)


def test_who_does_not_listen_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[EvictionFired] = []
    listened = solve([told.append])
    assert told

    def refuse(*_: object) -> None:
        raise AssertionError("somebody asked for it")

    monkeypatch.setattr(SlotStore, "in_order", refuse)
    assert solve([told.append]) == listened  # counts alone read nothing of the cache
    monkeypatch.setattr(Firing, "__init__", refuse)
    assert solve() == listened


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_told_adds_up(seed: int) -> None:
    told: list[EvictionFired] = []
    positions: list[np.ndarray] = []

    def listen(event: EvictionFired) -> None:
        told.append(event)
        positions.append(event.positions())

    solution = solve([listen], seed)
    assert {event.proposer for event in told} == {"base"}
    assert {(event.question_id, event.seed) for event in told} == {(solution.question.id, seed)}
    assert told[0].when == "prompt"
    assert [event.when for event in told].count("prompt") == 1
    shape = base().engine.adapter.shape(observation=8)
    for event, kept in zip(told, positions, strict=True):
        assert kept.shape == (shape.layers, shape.kv_heads, event.physical_length)
        assert event.physical_length == BUDGET + WINDOW
        assert (np.diff(kept, axis=-1) > 0).all()
        newest = np.arange(event.logical_length - WINDOW, event.logical_length)
        assert (kept[..., -WINDOW:] == newest).all()
        assert (event.candidate is None) is (event.when != "decode")
    # The trajectory's own evictions: the prompt's, those of steps it read, and those of forks that
    # it adopted. The last step is read by nobody.
    own = [event for event in told if event.when != "decode"]
    for step in solution.steps[:-1]:
        if step.candidate.policy == "base":
            own += [
                event
                for event in told
                if event.when == "decode"
                and (event.step, event.candidate) == (step.number, step.candidate.index)
            ]
    stats = solution.caches["base"]
    assert len(own) == stats.evictions
    assert sum(event.dropped for event in own) == stats.dropped
    steps = [event.step for event in told if event.when == "rebase"]
    assert steps == sorted(steps)
    assert set(steps) <= {step.number for step in solution.steps[:-1]}


def test_a_view_keeps_nothing_that_it_had_dropped() -> None:
    states: list[set[int]] = []

    def listen(event: EvictionFired) -> None:
        if event.when != "decode":
            states.append(set(event.positions()[0, 0].tolist()))
            if len(states) > 1:
                seen = max(states[-2]) + 1
                assert {p for p in states[-1] if p < seen} <= states[-2]

    solve([listen])
    assert len(states) > 1


@pytest.mark.parametrize("when", ["prompt", "decode", "rebase"])
@pytest.mark.parametrize("on_policy_error", ["raise", "degrade"])
def test_a_plugin_that_fails_is_named(when: str, on_policy_error: str) -> None:
    class Bad:
        @hookimpl
        def kvrescue_eviction_fired(self, event: EvictionFired) -> None:
            if event.when == when:
                raise ZeroDivisionError("oops")

    known = Plugins()
    known.register(Bad(), name="bad")
    with (
        rescue(plugins=known, on_policy_error=on_policy_error) as solver,
        pytest.raises(PluginError, match=r"'bad' failed in kvrescue_eviction_fired.*oops") as e,
    ):
        solver.solve(PROBLEM, 1)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    for policy in (base(), helper()):
        assert set(policy.engine.in_use.values()) == {0}


def test_a_listener_that_fails_ends_its_own_trajectory_only() -> None:
    def listen(event: EvictionFired) -> None:
        if event.question_id == "bad" and event.when == "decode":
            raise ZeroDivisionError("oops")

    with rescue([listen]) as solver:
        asked = [Question(PROBLEM, "bad"), Question(PROBLEM, "good")]
        found = {question.id: result for question, result in solver.solve_each(asked, 1)}
    assert isinstance(found["bad"], PluginError)
    assert isinstance(found["good"], Solution)
    # Texts, not whole solutions: other companions in a batch move the last bits of entropies.
    assert found["good"].text == _alone("good").text


def _alone(id_: str) -> Solution:
    with rescue() as solver:
        return solver.solve(Question(PROBLEM, id_), 1)


def test_evictions_are_not_streamed() -> None:
    told: list[EvictionFired] = []
    with rescue([told.append]) as solver:
        events = list(solver.stream(PROBLEM, 1))
    assert told
    assert not any(isinstance(event, EvictionFired) for event in events)
    assert any(isinstance(event, StepCommitted) for event in events)
