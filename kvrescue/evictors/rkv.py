"""R-KV: keep what recent queries attend to and what is not said again later."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from kvrescue.evictors.base import Evictor, KVSlice

if TYPE_CHECKING:
    from torch import Tensor

    from kvrescue.evictors.tracking import ScoreTracker

__all__ = ["RKV"]


def odd(kernel_size: int) -> int:
    """Pooling kernels are centred, so an even one has no meaning."""
    if kernel_size % 2 == 0:
        raise ValueError(
            f"kernel_size {kernel_size} is even, pooling is centred on an entry; use "
            f"{kernel_size - 1} or {kernel_size + 1}"
        )
    return kernel_size


class RKV(Evictor):
    """R-KV (the R-KV paper and its official code), the evictor of the KV-Rescue paper.

    Z_j = lam * I_j - (1 - lam) * R_j for every entry before the window, per row and KV head:

    * importance I: the largest logit q . k / sqrt(d) of the query group, softmax over the past
      (everything before the window), mean over the `observation` queries, max-pool over
      `kernel_size` neighbours in temporal order;
    * redundancy R: softmax over all entries of their mean cosine similarity to the others, where
      each entry's similarity to its *last* neighbour above `similarity_threshold` is exempted (to
      entry 0 when it has none), so that the newest of several copies is not penalised.

    Differences from the official code, both on purpose: everything is computed in float32 (there
    the redundancy is in the model dtype, where most of its values collapse), and neighbours are
    neighbours in time (there the cache is in score order after the first eviction). `lam` is the
    paper's 0.1 (official class: 0.07). The official class ties the number of observation queries
    to the window; here they are two options. `budget` excludes the window.

    When `observation` exceeds `window` an entry is hidden from older queries (causal mask).
    """

    kind: ClassVar[str] = "rkv"

    kernel_size: int = Field(default=7, ge=1)
    """Width of the max-pool over the importance; odd."""
    lam: float = Field(default=0.1, ge=0.0, le=1.0, allow_inf_nan=False)
    """Weight of importance against redundancy."""
    similarity_threshold: float | None = Field(default=0.5, ge=0.0, le=1.0, allow_inf_nan=False)
    """Cosine above which two entries say the same. None turns the exemption off: the search for
    the last neighbour is half of what a select costs, and on the keys of SmolLM2-135M (5 layers,
    budget 64) it changed at most one kept entry of 200."""

    _odd = field_validator("kernel_size")(odd)

    def score(self, kv: KVSlice) -> Tensor:
        """Z as above, float32 [rows, kv_heads, length]; 0 for window entries.

        Raises `EvictorError` when the slice holds no entry before the window.
        """
        from kvrescue.evictors import tensors as ops
        from kvrescue.evictors._rkv_scores import rkv_scores

        return rkv_scores(
            kv,
            past=ops.past_length(self.kind, kv, self.window),
            kernel_size=self.kernel_size,
            lam=self.lam,
            threshold=self.similarity_threshold,
        )

    def tracker(self) -> ScoreTracker | None:
        """Scores in O(n * dim) per head while the cache only changes by a few entries."""
        if self.window < self.observation:
            return None  # a causal mask would apply, which the tracker does not know
        from kvrescue.evictors._rkv_tracker import RKVTracker

        return RKVTracker(self)
