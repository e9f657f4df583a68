"""Rules that misbehave, for worker processes."""

from __future__ import annotations

import os
import sys
import time


def same(answer: str, gold: str) -> bool:
    """What a rule should be; misbehaves where the answer says so."""
    if answer == "hang":
        return len(str(9**9**9)) == 1  # one call of C code: no signal is seen inside
    if answer == "sleep":
        time.sleep(10_000)
    if answer == "die":
        os.abort()
    if answer == "raise":
        raise ValueError("no such answer")
    if answer == "deep":
        return same(answer, gold)
    if answer == "grow":
        return bool(bytearray(1 << 40))
    if answer == "talk":
        print("noise " * 10_000, flush=True)
        print("noise " * 10_000, file=sys.stderr, flush=True)
    return answer == gold


def other(answer: str, gold: str) -> bool:
    """A rule that behaves."""
    return answer.lower() == gold.lower()
