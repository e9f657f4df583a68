"""Every built-in component, as it enters the kit.

The key is its kind, with what distinguishes it from others of the kind behind a comma; a built-in
that is not here fails `test_matrix.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from kvrescue.detectors import Detector, EntropyDetector, GzipDetector, NgramDetector
from kvrescue.evictors import (
    H2O,
    RKV,
    Evictor,
    NoEviction,
    RandomEviction,
    SnapKV,
    StreamingLLM,
)
from kvrescue.policies.specs import TorchPolicySpec
from kvrescue.scorers.specs import LikelihoodSpec, QwenPRMSpec
from kvrescue.testing import check_policy, check_scorer
from tests.detectors.matrix import CONFIGURED

__all__ = ["DETECTORS", "ELSEWHERE", "EVICTORS", "POLICIES", "SCORERS"]

EVICTORS: dict[str, Evictor] = {
    "rkv": RKV(budget=12, window=4, observation=3),
    "rkv, one row exempted": RKV(budget=8, window=4, observation=2, lam=0.5, kernel_size=1),
    "rkv, no exemption": RKV(budget=8, window=4, observation=2, similarity_threshold=None),
    "snapkv": SnapKV(budget=6, window=3, observation=2),
    "snapkv, as kvpress": SnapKV(
        budget=6, window=3, kernel_size=5, pooling="avg", reduce="mean", softmax_over="all"
    ),
    "h2o": H2O(budget=6, window=3),
    "h2o, summed": H2O(budget=6, window=3, per_query=False),
    "streaming_llm": StreamingLLM(budget=6, window=3, sinks=2),
    "random": RandomEviction(budget=6, window=3, seed=7),
    "none": NoEviction(),
}

DETECTORS: dict[str, Detector] = {
    **CONFIGURED,
    "entropy, as it comes": EntropyDetector(),
    "gzip, as it comes": GzipDetector(),
    "ngram, as it comes": NgramDetector(),
}

Check = Callable[[], None]


SCORERS: dict[str, Check] = {
    "qwen_prm": lambda: check_scorer(QwenPRMSpec(model="tiny/prm"), examples=4),
    "likelihood": lambda: check_scorer(LikelihoodSpec(model="tiny/helper"), examples=4),
}

POLICIES: dict[str, Check] = {
    "torch, every token": lambda: check_policy(
        TorchPolicySpec(model="tiny/base", max_context=384, evictor=RKV(budget=32, window=16)),
        examples=3,
    ),
    "torch, every fourth": lambda: check_policy(
        TorchPolicySpec(
            model="tiny/base", max_context=384, evictor=SnapKV(budget=32, window=16, interval=4)
        ),
        interval=4,
        examples=3,
    ),
    "torch, full": lambda: check_policy(
        TorchPolicySpec(model="tiny/helper", max_context=384), examples=3
    ),
}

ELSEWHERE: dict[str, str] = {
    "http_prm": "tests/scorers/test_http_prm.py",
    "vllm_prm": "tests/vllm/test_prm.py",
    "vllm": "tests/vllm/test_contract.py",
}
"""Kinds that need a server or another environment, and the file that calls the kit on them."""

RECORDED: dict[str, str] = {"replay": "tests/replay/test_laws.py"}
"""Kinds that give back what was recorded and nothing else, so that what the kit asks is refused,
and the file with their own law: a replay of a recorded run is that run."""
