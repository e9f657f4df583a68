"""What a tracked last match may be instead of a slot; see `kvrescue.evictors._rkv_tracker`.

`_tracked` repeats these numbers, and a test compares them.
"""

from typing import Final

__all__ = ["NONE", "OPEN", "STALE"]

NONE: Final = -1
"""No entry matches: the oldest one is exempted."""
OPEN: Final = -2
"""The match has left: search again."""
STALE: Final = -3
"""No entry matches, and the oldest one has left: compare with the one that is now."""
