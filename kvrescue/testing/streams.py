"""Tokens for detectors."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvrescue.detectors.base import TokenEvent
from kvrescue.errors import ConfigError
from kvrescue.testing.laws import SHRINK_SECONDS

__all__ = ["LONG", "QUIET", "Shown", "Stream", "shrunk", "tokens_from"]

_SHOWN = 16


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


@dataclass(frozen=True)
class Shown:
    """What a breach happened on: the candidate, at which of its tokens, and beside whom."""

    events: tuple[TokenEvent, ...]
    at: int = 0
    """The token that failed, from 1; 0 where it is not one of them."""
    where: str = ""
    """The context; empty where it has no steps."""
    other: tuple[TokenEvent, ...] | None = None
    """Another candidate that has to do with it."""

    def __str__(self) -> str:
        parts = [_told(self.events, self.at) or "no tokens"]
        if self.where:
            parts.append(self.where)
        if self.other:
            parts.append(f"the other candidate: {_told(self.other)}")
        return "\n".join(parts)


def _told(events: Sequence[TokenEvent], at: int = 0) -> str:
    first, last = 0, len(events)
    if last > _SHOWN:
        first = max(0, min(at - 8, last - 12)) if at else 0
        last = first + 12
    shown = ", ".join(
        f"{e.text!r} (id {e.token_id}, {e.entropy:g} nats)" for e in events[first:last]
    )
    before = f"tokens {first + 1} to {last} of {len(events)}: " if first else ""
    rest = len(events) - last
    return before + shown + (f", ... {rest} more" if rest > 0 and not first else "")


def tokens_from(given: Any, what: str) -> tuple[TokenEvent, ...]:
    """Tokens of a list of tokens or texts; a text alone is read character by character.

    A text becomes a token with an id that follows from it and an entropy of 1 nat.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(given, str | list | tuple) and all(
        isinstance(e, str | TokenEvent) for e in given
    ):
        return tuple(e if isinstance(e, TokenEvent) else _token(e) for e in given)
    raise ConfigError(
        f"{what} = {given!r}: expected a text, or a list of texts or of kvrescue.TokenEvent, as in "
        f'{what}=["so", " so", " so"]'
    )


def _token(text: str) -> TokenEvent:
    return TokenEvent(1 + zlib.crc32(text.encode(errors="surrogatepass")) % 50_000, text, 1.0)


def shrunk(
    events: tuple[TokenEvent, ...], breaks: Callable[[tuple[TokenEvent, ...]], bool]
) -> tuple[TokenEvent, ...]:
    """Fewer tokens that still break a law: halves, quarters, ... are left out while that lasts."""
    end = time.process_time() + SHRINK_SECONDS
    size = (len(events) + 1) // 2
    while size:
        start = len(events) - size
        while start > -size:
            kept = events[: max(0, start)] + events[start + size :]
            if time.process_time() > end:
                return events
            if breaks(kept):
                events = kept
            start -= size
        size //= 2
    return events


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

QUIET: Final = (
    Stream(),
    Stream(tokens_from(["Tom ", "has ", "3 ", "apples ", "and ", "buys ", "4 ", "more."], "QUIET")),
    Stream(tokens_from(["leaving ", "7", ";\n\n"], "QUIET")),
)
"""Streams that hardly any detector minds, read before anything has fired; the last one is a step of
another context (`pools.STEPS[3]`)."""
