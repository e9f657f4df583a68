"""The rule of Hugging Face's math-verify, on the last box alone."""

from __future__ import annotations

import logging

from math_verify import parse, verify

__all__ = ["math_verify_equal"]

# It warns, once and through logging, that we have turned its own time limit (SIGALRM) off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def math_verify_equal(answer: str, gold: str) -> bool:
    """Whether math-verify finds an answer, as extracted from its box, equal to the gold answer.

    It gets no more than the last box because it makes one set of several. No time limit: its own
    works by signal, in main threads only, and not inside C code; a worker process may be killed.

    It may take for ever and all memory: call it through `Grader` where answers are not trusted.
    """
    wanted = parse(_wrapped(gold), parsing_timeout=None)
    found = parse(_boxed(answer), parsing_timeout=None)
    return bool(verify(wanted, found, timeout_seconds=None))


def _boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def _wrapped(gold: str) -> str:
    """A gold answer as mathematics; dollars inside it would end it early."""
    plain = gold.strip()
    if plain.startswith("$") and plain.endswith("$") and len(plain) > 1:
        plain = plain.strip("$")
    return f"${plain}$"
