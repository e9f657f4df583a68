"""A tracker against the scores from scratch, in a cache as engines keep it. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.evictors.tracking import ScoreTracker, StateField, TrackedCache
from kvrescue.testing.evictors import TRACKER
from kvrescue.testing.laws import broken

__all__ = ["TrackedCase", "check_case", "tracked"]

NEAR, NEAR_ZERO = 1e-3, 1e-5


def tracked(evictor: Evictor) -> bool:
    """Whether an engine ever asks the tracker: it scores from scratch where many leave at once."""
    return evictor.bounded and evictor.interval * 4 <= evictor.bound


@dataclass(frozen=True)
class TrackedCase:
    """Entries that arrive, and as many that leave, time after time."""

    counts: tuple[int, ...]
    rows: int = 1
    kv_heads: int = 1
    group: int = 1
    spread: float = 0.5
    """Distance of the keys from a few centres: small means much alike."""
    seed: int = 0


@torch.no_grad()
def check_case(evictor: Evictor, who: str, case: TrackedCase) -> None:
    """Raises LawBroken when the tracker's scores differ from those of `score`."""
    __tracebackhide__ = True
    tracker = evictor.tracker()
    if tracker is None:
        return
    cache = _Cache(evictor, case)
    with torch.no_grad():
        cache.append(evictor.bound + case.counts[0])
        tracker.start(cache.tracked(tracker, new=0, observed=evictor.observation))
        new = 0
        for turn, count in enumerate(case.counts):
            if turn:
                cache.append(count)
                new = count
            seen = min(new, evictor.observation)
            got = tracker.score(cache.tracked(tracker, new=new, observed=seen))
            expected = evictor.score(cache.slice())
            past = cache.length - evictor.window
            gap = (got - expected)[..., :past].abs().nan_to_num(float("inf"))
            limit = NEAR_ZERO + NEAR * float(expected[..., :past].abs().max())
            if got.shape != expected.shape or float(gap.max()) > limit:
                place = torch.unravel_index(gap.argmax(), gap.shape)
                row, head, entry = (int(i) for i in place)
                broken(
                    TRACKER,
                    who,
                    f"after {sum(case.counts[1 : turn + 1])} appended entries the score of entry "
                    f"{entry} (row {row}, KV head {head}) is {float(got[row, head, entry]):.6g}",
                    f"{float(expected[row, head, entry]):.6g}, as from scratch",
                )
            cache.drop(tracker, count)


@dataclass
class _Cache:
    """Keys in storage order: entries that leave are replaced by the last ones."""

    evictor: Evictor
    case: TrackedCase
    keys: Tensor = field(init=False)
    order: Tensor = field(init=False)
    positions: Tensor = field(init=False)
    queries: Tensor = field(init=False)
    state: dict[str, Tensor] = field(default_factory=dict)
    fields: dict[str, StateField] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case, dim = self.case, 8
        self.made = torch.Generator().manual_seed(case.seed)
        self.centres = torch.randn(4, dim, generator=self.made)
        lead = (case.rows, case.kv_heads)
        self.keys = torch.zeros(*lead, 0, dim)
        self.order = torch.zeros(*lead, 0, dtype=torch.int64)
        self.positions = torch.zeros(*lead, 0, dtype=torch.int64)
        self.queries = torch.zeros(case.rows, case.kv_heads * case.group, 0, dim)
        self.logical = 0

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    def append(self, count: int) -> None:
        lead, dim = self.keys.shape[:2], self.keys.shape[3]
        which = torch.randint(0, 4, (*lead, count), generator=self.made)
        noise = torch.randn(*lead, count, dim, generator=self.made)
        places = torch.arange(self.length, self.length + count).expand(*lead, -1)
        logical = torch.arange(self.logical, self.logical + count).expand(*lead, -1)
        asked = torch.randn(lead[0], self.queries.shape[1], count, dim, generator=self.made)
        new = self.centres[which] + self.case.spread * noise
        self.keys = torch.cat((self.keys, new), 2)
        self.order = torch.cat((self.order, places), 2)
        self.positions = torch.cat((self.positions, logical), 2)
        self.queries = torch.cat((self.queries, asked), 2)
        self.logical += count
        for name, what in self.fields.items():
            rest = torch.zeros(*lead, count, *what.shape, dtype=what.dtype)
            self.state[name] = torch.cat((self.state[name], rest), 2)

    def tracked(self, tracker: ScoreTracker, *, new: int, observed: int) -> TrackedCache:
        if not self.state:
            lead, dim = self.keys.shape[:2], self.keys.shape[3]
            self.fields = tracker.entry_state(dim)
            self.state = {
                name: torch.zeros(*lead, self.length, *what.shape, dtype=what.dtype)
                for name, what in self.fields.items()
            }
            for name, what in tracker.head_state(dim).items():
                self.state[name] = torch.zeros(*lead, *what.shape, dtype=what.dtype)
        return TrackedCache(
            keys=self.keys,
            queries=self.queries[:, :, self.queries.shape[2] - observed :],
            order=self.order,
            logical=torch.full((self.case.rows,), self.logical),
            state=self.state,
            new=new,
        )

    def slice(self) -> KVSlice:
        """The entries in temporal order."""
        wide = self.order.unsqueeze(3).expand_as(self.keys)
        seen = self.queries[:, :, -self.evictor.observation :]
        return KVSlice(
            keys=self.keys.gather(2, wide),
            queries=seen,
            positions=self.positions.gather(2, self.order),
        )

    def drop(self, tracker: ScoreTracker, count: int) -> None:
        """Any `count` entries before the window leave; the last slots move into theirs."""
        rows, heads, length = self.order.shape
        kept = length - count
        past = length - self.evictor.window
        ranks = torch.rand(rows, heads, past, generator=self.made).argsort(2)[..., :count]
        slots = self.order.gather(2, ranks).sort(2).values
        renamed = torch.arange(length).repeat(rows, heads, 1)
        renamed.scatter_(2, slots, -1)
        sources = slots.clone()
        for row in range(rows):
            for head in range(heads):
                names = renamed[row, head]
                moving = [place for place in range(kept, length) if int(names[place]) >= 0]
                for j, source in enumerate(moving):  # into the first slots that are freed
                    names[source] = slots[row, head, j]
                    sources[row, head, j] = source
        tracker.drop(self.tracked(tracker, new=0, observed=0), slots, sources)
        kinds = list(self.fields)
        for row in range(rows):
            for head in range(heads):
                for source in range(kept, length):
                    target = int(renamed[row, head, source])
                    if target >= 0:
                        for value in (self.keys, self.positions, *(self.state[n] for n in kinds)):
                            value[row, head, target] = value[row, head, source]
        stays = renamed.gather(2, self.order)
        self.order = stays[stays >= 0].view(rows, heads, kept)
        self.keys, self.positions = self.keys[:, :, :kept], self.positions[:, :, :kept]
        for name in kinds:
            self.state[name] = self.state[name][:, :, :kept].contiguous()
