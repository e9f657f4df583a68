"""Evictors: which cached entries stay when a sequence outgrows its bound B' = B + w.

An evictor is a frozen pydantic model with one method to write, `score`; the base class turns
scores into kept indices (`Evictor.select`) by the same rules for every method:

* kept = protected prefix + the `budget` best-scored entries of the middle + the `window` newest,
  per row and KV head, in temporal order;
* of equal scores the earlier entry stays;
* a row of at most prefix + B' entries keeps everything;
* a row's result depends on that row alone (up to the rounding of batched matrix products).

Importing this package does not import torch; the tensor code loads at the first `select`.
"""

from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.evictors.h2o import H2O
from kvrescue.evictors.none import NoEviction
from kvrescue.evictors.random import RandomEviction
from kvrescue.evictors.rkv import RKV
from kvrescue.evictors.snapkv import SnapKV
from kvrescue.evictors.streaming_llm import StreamingLLM

__all__ = [
    "RKV",
    "Evictor",
    "H2O",
    "KVSlice",
    "NoEviction",
    "RandomEviction",
    "SnapKV",
    "StreamingLLM",
]
