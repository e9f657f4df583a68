"""A calibration is applied to what it was made for, and to nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvrescue.calibration import Calibration, apply, calibrate, check_tokenizer, remarks
from kvrescue.calibration.samples import facts_of
from kvrescue.config import RescueConfig, load_config
from kvrescue.detectors import EntropyDetector
from kvrescue.errors import CalibrationError, ConfigError
from tests.calibration.parts import candidate, samples
from tests.calibration.test_calibrate import separated

EVICTED = "proposers.base.policy."


def tiny(*overrides: str) -> RescueConfig:
    return load_config("tiny", overrides)


@pytest.fixture(scope="module")
def made() -> Calibration:
    """Of the tiny preset at budgets 16 and 64; nothing is measured of gzip and ngram."""
    entropy, gzip, ngram = tiny().proposers["base"].detectors
    found = [
        replace(s, values=(s.values[0], None, 0.0))
        for budget in (16, 64)
        for s in separated(budget=budget)
    ]
    facts = facts_of(tiny()) | {"tokenizer": "tok"}
    return calibrate(samples(found, entropy, gzip, ngram, **facts), false_aborts=0.05)


@pytest.mark.parametrize("budget", [16, 64])
def test_thresholds_are_set_and_all_else_stays(made: Calibration, budget: int) -> None:
    plain = tiny(f"{EVICTED}evictor.budget={budget}")
    changed = apply(plain, made)
    entropy, gzip, ngram = changed.proposers["base"].detectors
    assert entropy == EntropyDetector(threshold=3.0, guard=6, window=4)
    assert (gzip, ngram) == plain.proposers["base"].detectors[1:]
    (line,) = made.at(budget).overrides()
    assert changed == tiny(f"{EVICTED}evictor.budget={budget}", line)
    assert apply(changed, made) == changed


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (f"{EVICTED}model=tiny/helper", "base.model = 'tiny/helper', calibrated with 'tiny/base'"),
        (f"{EVICTED}system=Think.", "base.system"),
        (f"{EVICTED}evictor.window=13", "evictor"),
        (f"{EVICTED}evictor={{kind: snapkv, budget: 16, window: 12}}", "'kind': 'snapkv'"),
        (f"{EVICTED}evictor.budget=32", "budget 32 was not calibrated, only 16, 64"),
        ("sampling.temperature=0.7", "sampling"),
        ("sampling.max_step_tokens=20", "sampling"),
        ("proposers.base.detectors.entropy.window=3", "window = 3, calibrated with 4"),
        ("proposers.base.detectors=[gzip]", r"is of 'entropy' as detector 0 of the base"),
    ],
)
def test_anything_else_is_refused(made: Calibration, override: str, text: str) -> None:
    with pytest.raises(CalibrationError, match=text):
        apply(tiny(override), made)


def test_without_an_evictor_there_is_nothing_to_apply(made: Calibration) -> None:
    with pytest.raises(ConfigError, match="has no evictor"):
        apply(tiny(f"{EVICTED}evictor=null"), made)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("proposers.helper.policy.model=tiny/base", "another helper.model: 'tiny/helper'"),
        ("limits.max_output_tokens=99", "another limits"),
        ("stop_at_answer=true", "another stop_at_answer"),
    ],
)
def test_what_changes_contexts_only_is_told(made: Calibration, override: str, text: str) -> None:
    changed = tiny(override)
    apply(changed, made)
    assert any(text in line for line in remarks(changed, made))


def test_detectors_that_keep_their_thresholds_are_told(made: Calibration) -> None:
    told = remarks(tiny(), made)
    assert len(told) == 2
    assert told[0].startswith("gzip.threshold stays at 0.7: healthy candidates")
    assert told[1].startswith("ngram.min_span stays at 6: no threshold")


def test_another_tokenizer_is_refused(made: Calibration) -> None:
    check_tokenizer(made, candidate("base", [1.0]))
    check_tokenizer(made, candidate("helper", [1.0], tokenizer="another"))
    with pytest.raises(CalibrationError, match="tokenizer is another"):
        check_tokenizer(made, candidate("base", [1.0], tokenizer="another"))
