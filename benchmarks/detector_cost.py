"""What the detectors take of a decode step: SmolLM2-135M, 64 live candidates.

The detectors read streams of tokens that make none of them fire, so that every token is paid for,
and the step is one of the engine's own; 64 candidates are read in every step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.decode_overheads import plain_rows
from benchmarks.ratios import Goal, Ratio, Side, Size, in_turns
from kvrescue.detectors import (
    Detector,
    DetectorBank,
    EntropyDetector,
    GzipDetector,
    NgramDetector,
    TokenEvent,
)
from kvrescue.engine.sampler import entropy

__all__ = ["ratios", "streams"]

DETECTORS: tuple[Detector, ...] = (
    EntropyDetector(),
    GzipDetector(threshold=0.05),  # the stream of two words would fire at the default
    NgramDetector(),
)
SHARE = 0.02
"""What detectors may take of a step."""


def _events(pieces: Sequence[str]) -> list[TokenEvent]:
    ids: dict[str, int] = {}
    return [TokenEvent(ids.setdefault(piece, len(ids)), piece, 0.7) for piece in pieces]


def _vocabulary(generator: random.Random, size: int, lengths: Sequence[int]) -> list[str]:
    letters = "etaoinshrdlucmfwygpbvk"
    return [
        " " + "".join(generator.choices(letters, k=generator.choice(lengths) - 1))
        for _ in range(size)
    ]


def streams() -> dict[str, list[TokenEvent]]:
    """Texts that make no detector fire."""
    generator = random.Random(0)
    words = _vocabulary(generator, 300, (2, 3, 3, 4, 5))
    long_words = _vocabulary(generator, 300, (9,))
    chinese = [chr(0x4E00 + n) + chr(0x5A00 + n) for n in range(300)]
    return {
        "a step of 25 tokens": _events(generator.choices(words, k=25)),
        "a step of 512 tokens": _events(generator.choices(words, k=512)),
        "512 long tokens": _events(generator.choices(long_words, k=512)),
        "512 tokens of Chinese": _events(generator.choices(chinese, k=512)),
        "512 tokens, two kinds": _events(generator.choices([" alpha", " beta"], k=512)),
    }


def _least(work: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the quickest repeat: what disturbs work this short only adds to it."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def _read(events: Sequence[TokenEvent]) -> None:
    bank = DetectorBank(DETECTORS)
    for event in events:
        if bank.update(event) is not None:
            raise RuntimeError("a detector fired, so the rest of the stream was not paid for")


def ratios(size: Size) -> list[Ratio]:
    rows = plain_rows(size)
    live, repeats = len(rows.sequences) * rows.forks, size.pick(7, 5, 1)
    logits = torch.randn(live, rows.engine.adapter.vocab_size)
    texts = streams()

    def of_step(events: Sequence[TokenEvent]) -> float:
        return live * _least(partial(_read, events), repeats) / len(events)

    sides: dict[str, Callable[[], float]] = {
        name: partial(of_step, events) for name, events in texts.items()
    }
    sides["entropy"] = lambda: _least(lambda: entropy(logits), repeats)
    sides["step"] = lambda: rows.step(size.pick(6, 6, 4))
    found = in_turns(sides, size.pick(3, 2, 1), warm_up=())
    step = Side(f"decode step of {live} rows", found["step"])
    table = [
        Ratio(
            name=f"all detectors over the step, {name}",
            above=Side("entropy, gzip and n-gram detector", found[name]),
            below=step,
            unit=f"seconds per decode step of {live} rows",
            clock="cpu",
            goal=Goal("at most", SHARE),
            means="The detectors' share of a decode step on a model of 135M parameters: the more a "
            "step takes, the smaller.",
            means_not="what detectors save by ending candidates; see rescue.",
        )
        for name in texts
    ]
    table.append(
        Ratio(
            name="entropy of each token over the step",
            above=Side("entropy of every row's logits", found["entropy"]),
            below=step,
            unit=f"seconds per decode step of {live} rows",
            clock="cpu",
            means="What a detector and the traces read is computed in every step, with or without "
            "detectors; the share grows with the vocabulary over the parameters.",
            means_not="a part of the ratios above it.",
        )
    )
    return table
