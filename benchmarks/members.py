"""The members of the suite: what can be measured, and what each of them needs.

A member is a function `ratios(size: Size) -> list[Ratio]` of a module of its own, which is imported
in the process that runs it and nowhere else: listing them loads neither torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from kvrescue.errors import UnknownNameError, nearest

__all__ = ["MEMBERS", "Member", "Needs", "chosen"]

Needs: TypeAlias = Literal["torch", "vllm", "its_hub"]
"""Which environment has what a member compares; see `benchmarks.environments`."""


@dataclass(frozen=True)
class Member:
    """One member."""

    name: str
    shows: str
    """In a few words."""
    module: str
    """Where its `ratios` is."""
    needs: Needs = "torch"
    limit: int = 240
    """Seconds on the wall until it is given up; far above what a quiet machine needs."""


_ALL: Final = (
    Member("scheduling", "event-driven against lock-step, and against generate", "engine_speed"),
    Member("forks", "forking a cache against filling it again", "forks"),
    Member("long_context", "decoding at 4096 tokens against 1024", "long_context", limit=360),
    Member("kv_bytes", "bytes of keys and values against Appendix D", "kv_bytes"),
    Member("rescue", "problems per minute, against evicted best-of-N", "rescue"),
    Member("eviction", "what an evictor adds to a decode step", "decode_overheads", limit=360),
    Member("alpha", "eviction against attention, Appendix D's alpha", "alpha"),
    Member("decode_profile", "what takes how much of a decode step", "decode_profile", limit=360),
    Member("detectors", "what detectors take of a decode step", "detector_cost"),
    Member("select", "choosing entries, from scratch", "evictor_cost"),
    Member("prm", "the reward model's prefix, kept against read again", "prm_prefix"),
    Member("vllm_prm", "the same on vLLM", "vllm_prm", "vllm"),
    Member("vllm_steps", "vLLM, sent tokens against whole texts", "vllm_speed", "vllm", 480),
    Member("vllm_decode", "what kvrescue adds to vLLM's step", "vllm_overheads", "vllm", 480),
    Member("vllm_torch", "the vLLM backend against the torch engine", "vllm_torch", "vllm", 360),
    Member("its_hub", "the vLLM backend against its-hub on stock vLLM", "peer_its_hub", "its_hub"),
)

MEMBERS: Final = {m.name: Member(m.name, m.shows, f"benchmarks.{m.module}", m.needs, m.limit)
                  for m in _ALL}  # fmt: skip
"""By name, in the order in which they run."""


def chosen(names: Iterable[str]) -> list[Member]:
    """The members of these names, in the suite's order; all of them where none is named.

    Raises:
        UnknownNameError: there is no such member; the message names the nearest.
    """
    wanted = set(names)
    for name in sorted(wanted - set(MEMBERS)):
        raise UnknownNameError(f"unknown benchmark {name!r}{nearest(name, MEMBERS)}")
    return [m for m in MEMBERS.values() if not wanted or m.name in wanted]
