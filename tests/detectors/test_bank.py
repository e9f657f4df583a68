"""What the bank adds to its detectors: every state reads every token, and an end is an end."""

from __future__ import annotations

from typing import ClassVar

import pytest

from kvrescue.detectors import Detector, DetectorBank, DetectorState, EntropyDetector, TokenEvent
from kvrescue.errors import NonFiniteLogitsError
from kvrescue.types import Verdict

EVENT = TokenEvent(1, "x", 0.0)


class _Counting(DetectorState):
    def __init__(self, limit: int, seen: list[int]) -> None:
        self.limit, self.seen = limit, seen

    def update(self, event: TokenEvent) -> Verdict | None:
        self.seen.append(event.token_id)
        if len(self.seen) < self.limit:
            return None
        return Verdict("count", f"limit {self.limit}", len(self.seen), 1.0, 1.0)


class CountDetector(Detector):
    kind: ClassVar[str] = "count"
    limit: int

    def start(self) -> DetectorState:
        seen: list[int] = []
        SEEN.append(seen)
        return _Counting(self.limit, seen)


SEEN: list[list[int]] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    SEEN.clear()


def test_every_detector_reads_every_token_up_to_the_verdict() -> None:
    bank = DetectorBank([CountDetector(limit=2), CountDetector(limit=2), CountDetector(limit=9)])
    assert bank.update(EVENT) is None
    verdict = bank.update(EVENT)
    assert verdict is not None
    assert [len(seen) for seen in SEEN] == [2, 2, 2]


def test_the_first_in_list_order_wins_at_one_position() -> None:
    bank = DetectorBank([EntropyDetector(threshold=1, guard=0, window=1), CountDetector(limit=1)])
    verdict = bank.update(TokenEvent(1, "x", 5.0))
    assert verdict is not None
    assert verdict.detector == "entropy"


def test_nothing_is_read_after_a_verdict() -> None:
    bank = DetectorBank([CountDetector(limit=1)])
    assert bank.update(EVENT) is bank.verdict
    with pytest.raises(RuntimeError, match="limit 1"):
        bank.update(EVENT)
    assert SEEN == [[1]]


def test_nothing_is_read_after_an_error() -> None:
    bank = DetectorBank([EntropyDetector()])
    with pytest.raises(NonFiniteLogitsError):
        bank.update(TokenEvent(1, "x", float("nan")))
    with pytest.raises(RuntimeError, match="with an error"):
        bank.update(EVENT)
    assert bank.verdict is None


def test_an_empty_bank_never_fires() -> None:
    bank = DetectorBank()
    assert [bank.update(EVENT) for _ in range(50)] == [None] * 50
    assert bank.verdict is None
