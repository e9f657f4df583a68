"""Samples: what detectors measure of recorded candidates, with how their trajectories ended.

Only candidates that no detector screened are samples: the others end where a
threshold cut them off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from kvrescue.config import RescueConfig
from kvrescue.detectors.base import Detector
from kvrescue.errors import CalibrationError, RunError
from kvrescue.evaluation.methods import BASE, HELPER, Method, require_proposers
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.trajectories.trace import trajectories
from kvrescue.types import Candidate, StopReason

__all__ = [
    "DEGENERATE",
    "HEALTHY",
    "Degenerate",
    "Group",
    "Healthy",
    "Sample",
    "Samples",
    "facts_of",
    "is_cut",
    "is_loop",
    "read_samples",
    "recorded_config",
]

Healthy: TypeAlias = Literal["right", "full-kv"]
"""Which candidates should not be aborted: see `docs/calibration.md`."""
Degenerate: TypeAlias = Literal["either", "cut", "loop"]
"""Which candidates should be: see `docs/calibration.md`."""
Group: TypeAlias = Literal["evicted", "full-KV", "helper"]
"""Who drew a candidate."""
HEALTHY: Final[tuple[Healthy, ...]] = get_args(Healthy)
"""The definitions to choose from."""
DEGENERATE: Final[tuple[Degenerate, ...]] = get_args(Degenerate)
"""The definitions to choose from."""

_GROUPS: Final[Mapping[Method, tuple[str, Group]]] = {
    "full_kv": (BASE, "full-KV"),
    "helper": (HELPER, "helper"),
    "best_of_n": (BASE, "evicted"),
    "interleaved": (BASE, "evicted"),
}
"""Methods without detectors: whose candidates of theirs are samples, and of what."""

_LEAST_TOKENS: Final = 16
_GRAM: Final = 4
_REPEATED: Final = 0.5


def is_loop(candidate: Candidate) -> bool:
    """Whether at least half of its sequences of 4 tokens were there before (seq-rep-4; Welleck et
    al. 2020), in at least 16 tokens. It asks neither for a period nor for compressibility."""
    ids = candidate.token_ids
    if len(ids) < _LEAST_TOKENS:
        return False
    grams = [ids[place : place + _GRAM] for place in range(len(ids) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) >= _REPEATED


def is_cut(candidate: Candidate, step_limit: int) -> bool:
    """Whether a limit ended it after at least half of the tokens that a step may have. What the
    trajectory's own limit cuts off sooner had no room and says nothing of the candidate."""
    if candidate.stop not in (StopReason.LENGTH, StopReason.CONTEXT):
        return False
    return 2 * candidate.n_tokens >= step_limit


@dataclass(frozen=True, slots=True)
class Sample:
    """One candidate."""

    problem: str
    """Hash of question and answer: the same problem of two runs is one."""
    group: Group
    budget: int | None
    """Of the evicted base."""
    values: tuple[float | None, ...]
    """What each detector measures of it."""
    committed: bool
    right: bool
    """Whether its trajectory ended with the right answer."""
    whole: bool
    """It ended by itself, at a separator or EOS."""
    cut: bool
    loop: bool

    def is_healthy(self, definition: Healthy) -> bool:
        """`right`: a committed step of the evicted base in a trajectory that ended right.
        `full-kv`: written by the base with its full cache, and ended by itself."""
        if definition == "full-kv":
            return self.group == "full-KV" and self.whole
        return self.group == "evicted" and self.committed and self.right

    def is_degenerate(self, definition: Degenerate) -> bool:
        """Of the evicted base, in a trajectory that did not end right, and cut or a loop."""
        found = (definition != "loop" and self.cut) or (definition != "cut" and self.loop)
        return self.group == "evicted" and not self.right and found


@dataclass
class Samples:
    """All samples of some runs, and what they are samples of."""

    detectors: tuple[Detector, ...]
    """Those with a threshold, as KV-Rescue has them now."""
    places: tuple[int, ...]
    """Where they stand among all of the base's detectors."""
    runs: tuple[str, ...] = ()
    """Names of their folders."""
    problem_sets: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What all of them have in common: models, evictor, sampling, limits, tokenizer."""
    found: list[Sample] = field(default_factory=list)
    trajectories: int = 0
    screened: int = 0
    """Settings that were left out because detectors were at work."""
    damaged: list[str] = field(default_factory=list)
    """Traces that could not be read."""

    @property
    def budgets(self) -> list[int]:
        """Of the evicted base, from the smallest."""
        return sorted({s.budget for s in self.found if s.budget is not None})


def recorded_config(runs: Iterable[Run]) -> RescueConfig:
    """The KV-Rescue that a run holds, the last one of the first run: its base has the detectors.

    Raises:
        CalibrationError: no run knows a KV-Rescue.
    """
    for run in runs:
        for setting in reversed(list(run.settings.values())):
            if setting.method == "kv_rescue":
                return setting.config
    raise CalibrationError(
        "the runs hold no setting of kv_rescue that would say which detectors are meant: name a "
        "configuration (--preset or --config)"
    )


def read_samples(runs: Sequence[Run], config: RescueConfig) -> Samples:
    """Measure every recorded candidate of the methods without detectors.

    Args:
        runs: with traces; finished or not.
        config: whose base has the detectors, and is the model of the runs. Detectors without a
            `cutoff` are left out.

    Raises:
        ConfigError: the configuration has no proposers `base` and `helper`.
        CalibrationError: there is nothing to calibrate, all was screened, no trace was kept, the
            runs differ in what decides the values, or they are of another model.
    """
    require_proposers(config)
    detectors = config.proposers[BASE].detectors
    known = {place: found for place, found in enumerate(detectors) if found.cutoff is not None}
    if not known:
        raise CalibrationError("the base has no detector with a threshold: nothing to calibrate")
    samples = Samples(
        tuple(known.values()),
        tuple(known),
        runs=tuple(dict.fromkeys(run.path.name for run in runs)),
        problem_sets=tuple(dict.fromkeys(run.problems.name for run in runs)),
    )
    told: dict[str, tuple[Any, str]] = {}
    for run in runs:
        for setting in run.settings.values():
            if setting.method == "kv_rescue" or _is_screened(setting):
                samples.screened += 1
                continue
            found = list(_of_setting(run, setting, samples))
            if found:
                _compare(told, _facts(setting), f"{run.path.name}: {setting.key}")
                samples.found += found
    _refuse_nothing(samples)
    samples.facts = {name: value for name, (value, _) in told.items()} | samples.facts
    mine, theirs = facts_of(config).get("base.model"), samples.facts.get("base.model")
    if mine != theirs:
        raise CalibrationError(
            f"the configuration's base is {mine!r}, that of the runs is {theirs!r}: detectors are "
            "calibrated for the model that they screen; name its configuration"
        )
    return samples


def _refuse_nothing(samples: Samples) -> None:
    if any(sample.group == "evicted" for sample in samples.found):
        return
    if not samples.found and samples.screened:
        raise CalibrationError(
            "all recorded candidates were screened by detectors, so what lies beyond the "
            "thresholds was cut off: run best_of_n or interleaved with --traces"
        )
    raise CalibrationError(
        "the runs hold no traced candidate of the evicted base that no detector screened: run "
        "best_of_n or interleaved with --traces P"
    )


def _is_screened(setting: Setting) -> bool:
    proposer, _ = _GROUPS[setting.method]
    return bool(setting.config.proposers[proposer].detectors)


def _of_setting(run: Run, setting: Setting, samples: Samples) -> Iterator[Sample]:
    proposer, group = _GROUPS[setting.method]
    limit = setting.config.sampling.max_step_tokens
    for problem in run.problems:
        record = run.records.get((setting.key, problem.id))
        if record is None or record.failure is not None or record.degraded:
            continue
        try:
            found = trajectories(run.events(setting.key, problem.id) or [])
        except RunError:
            samples.damaged.append(str(run.path.name / run.trace_file(setting.key, problem.id)))
            continue
        for trajectory in found:
            samples.trajectories += 1
            for round_ in trajectory.rounds:
                for place, candidate in enumerate(round_.candidates):
                    if candidate.policy != proposer:
                        continue
                    _refuse_screened(candidate, f"{run.path.name}: {setting.key}, {problem.id}")
                    if group != "helper":
                        _one_tokenizer(samples.facts, candidate)
                    yield Sample(
                        problem=problem.digest,
                        group=group,
                        budget=setting.budget,
                        values=tuple(d.measure(candidate) for d in samples.detectors),
                        committed=place == round_.chosen,
                        right=record.correct,
                        whole=candidate.stop in (StopReason.SEPARATOR, StopReason.EOS),
                        cut=is_cut(candidate, limit),
                        loop=is_loop(candidate),
                    )


def _refuse_screened(candidate: Candidate, where: str) -> None:
    if candidate.verdict is not None:
        raise CalibrationError(
            f"a candidate was aborted by {candidate.verdict.detector!r} where none should be "
            f"screened ({where}): such values are cut off at a threshold"
        )


def _one_tokenizer(facts: dict[str, Any], candidate: Candidate) -> None:
    known = facts.setdefault("tokenizer", candidate.tokenizer)
    if known != candidate.tokenizer:
        raise CalibrationError(
            f"the base's candidates were written with two tokenizers ({known} and "
            f"{candidate.tokenizer}): their values may not be pooled; calibrate each alone"
        )


# -- what decides the values ------------------------------------------------------------------


def _compare(told: dict[str, tuple[Any, str]], facts: Mapping[str, Any], where: str) -> None:
    """Keep what a setting is made of, or refuse what another one contradicts."""
    for name, value in facts.items():
        known, first = told.setdefault(name, (value, where))
        if known != value:
            raise CalibrationError(
                f"{name} = {value!r} in {where}, but {known!r} in {first}: such candidates may not "
                "be pooled; give runs of one composition, or calibrate each alone"
            )


def _facts(setting: Setting) -> dict[str, Any]:
    """What decides the values of a setting's candidates, but for the budget.

    Parts that a method leaves out are not told. The scorer decides which contexts candidates are
    drawn in wherever it has a choice.
    """
    return facts_of(setting.config, scored=setting.n > 1 or setting.method == "interleaved")


def facts_of(config: RescueConfig, *, scored: bool = True) -> dict[str, Any]:
    """The same of a configuration."""
    data = config.model_dump(mode="json")
    facts: dict[str, Any] = {}
    for name in (BASE, HELPER):
        section = data["proposers"].get(name)
        if section is None:
            continue
        policy = section["policy"]
        evictor = policy.pop("evictor", None)
        if "model" in policy:
            facts |= {f"{name}.{key}": policy.get(key) for key in ("model", "system", "template")}
        else:
            facts[f"{name}.policy"] = policy
        if name == BASE and evictor is not None:
            facts["evictor"] = {key: evictor[key] for key in evictor if key != "budget"}
    if scored:
        scorer = data["scorer"]
        facts["scorer"] = {key: scorer.get(key) for key in ("kind", "model")}
    facts["sampling"] = data["sampling"]
    facts["limits"] = data["limits"]
    facts["stop_at_answer"] = data["stop_at_answer"]
    return facts
