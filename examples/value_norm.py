"""An evictor: attention that an entry receives, times the size of what it would contribute.

What an entry adds to a head's output is its attention weight times its value vector, so a weight
alone ranks an entry high that then adds next to nothing. Sources: VATP (Guo et al., "Attention
Score is Not All You Need for Token Importance Indicator in KV Cache Reduction: Value Also Matters",
arXiv 2406.12335) multiplies accumulated attention by the L1 norm of the value; CriticalKV (Feng et
al., arXiv 2502.03805) takes the norm after the output projection, which an evictor does not see.
The attention here is that of the newest queries, as in SnapKV, so nothing is accumulated and vLLM
can run it, too.

    kvrescue solve "..." --plugin ./examples/value_norm.py \\
        --set proposers.base.policy.evictor='{kind: value_norm, budget: 16, window: 12}'
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from kvrescue import Evictor, KVSlice, hookimpl
from kvrescue.errors import EvictorError

if TYPE_CHECKING:
    from torch import Tensor

    from kvrescue.hookspecs import Register

__all__ = ["ValueNorm"]


class ValueNorm(Evictor):
    """score_j = mean over queries q of softmax_j(q . k_j / sqrt(d)), times the p-norm of v_j.

    The softmax runs over the entries before the window, per query head; the mean is over the
    `observation` newest queries and the query group of the KV head.
    """

    kind: ClassVar[str] = "value_norm"
    needs_values: ClassVar[bool] = True

    p: float = Field(default=1.0, gt=0)
    """Order of the norm; VATP and CriticalKV take 1."""

    def score(self, kv: KVSlice) -> Tensor:
        """float32 [rows, kv_heads, length]; 0 in the window, which stays in any case."""
        rows, heads, length, dim = kv.keys.shape  # values have the same shape
        past = length - self.window
        if kv.values is None:  # `select` asks for them; this is for who calls `score` directly
            raise EvictorError("evictor 'value_norm': KVSlice.values is None; it reads the values")
        keys, values = kv.keys[:, :, :past].float(), kv.values[:, :, :past].float()
        # The query heads of a KV head are neighbours: [rows, kv_heads, group * observation, dim].
        queries = kv.queries.float().reshape(rows, heads, -1, dim)
        weights = (queries @ keys.mT / math.sqrt(dim)).softmax(-1).mean(2)
        scores = weights.new_zeros(rows, heads, length)
        scores[:, :, :past] = weights * values.norm(p=self.p, dim=-1)
        return scores


@hookimpl
def kvrescue_register_evictors(register: Register) -> None:
    register("value_norm", ValueNorm)
