"""Shared test set-up: hypothesis profiles and one thread per worker."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile(
    "ci",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

for _ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    # Started in the background, or by nohup: commands under test must hear these all the same. A
    # handler, unlike SIG_IGN, is not inherited, and this one lets the tests themselves go on.
    if signal.getsignal(_ending) is signal.SIG_IGN:
        signal.signal(_ending, lambda _number, _frame: None)
