"""Tokens for detectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvrescue.detectors.base import TokenEvent

__all__ = ["LONG", "Stream"]


@dataclass(frozen=True)
class Stream:
    """Tokens of a candidate: `head`, `block` repeated `count` times, `tail`."""

    head: tuple[TokenEvent, ...] = ()
    block: tuple[TokenEvent, ...] = ()
    count: int = 0
    tail: tuple[TokenEvent, ...] = ()

    @property
    def events(self) -> tuple[TokenEvent, ...]:
        """The tokens in their order."""
        return self.head + self.block * self.count + self.tail

    def __str__(self) -> str:
        parts = [_told(self.head), "", _told(self.tail)]
        if self.block and self.count:
            parts[1] = f"{self.count} x [{_told(self.block)}]"
        return ", then ".join(part for part in parts if part) or "no tokens"


def _told(events: Sequence[TokenEvent]) -> str:
    shown = [f"{e.text!r} (id {e.token_id}, {e.entropy:g} nats)" for e in events[:12]]
    rest = len(events) - len(shown)
    return ", ".join(shown) + (f", ... {rest} more" if rest > 0 else "")


def _long_streams() -> tuple[Stream, ...]:
    loops = (("the ",), ("\n",), ("so ", "we ", "have ", "1"), (" x = 3;",), ("é数 ",))
    made = [
        Stream(
            block=tuple(TokenEvent(n + 1, text, entropy) for n, text in enumerate(texts)),
            count=1500 // len(texts),
        )
        for entropy in (11.0, 0.0)
        for texts in loops
    ]
    varied = tuple(
        TokenEvent(n * 7919 % 50021, f"w{n * 7919 % 50021:x} ", 11.0 * (n % 2)) for n in range(1500)
    )
    return (*made, Stream(head=varied))


LONG: Final = _long_streams()
"""Streams long enough for detectors with large windows."""
