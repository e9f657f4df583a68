"""Options that are built directly, wrongly, raise a typed error that names field and value."""

from __future__ import annotations

import pytest

from kvrescue import Limits, Sampling
from kvrescue.detectors import NgramDetector
from kvrescue.errors import ConfigError
from kvrescue.evictors import RKV


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: RKV(budget=0), "RKV: budget = 0"),
        (lambda: RKV(budget=4, window=-1), "RKV: window = -1"),
        (lambda: RKV(budget="x"), "RKV: budget = 'x'"),  # type: ignore[arg-type]
        (lambda: RKV(bugdet=4), "bugdet"),  # type: ignore[call-arg]
        (lambda: Sampling(temperature=-1), "Sampling: temperature = -1"),
        (lambda: Sampling(temperature=float("nan")), "temperature = nan"),
        (lambda: Limits(max_output_tokens=0), "Limits: max_output_tokens = 0"),
        (lambda: NgramDetector(min_count=0), "NgramDetector: min_count = 0"),
    ],
)
def test_wrong_options_are_typed_errors(build, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        build()
