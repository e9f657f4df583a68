"""Run one member in this process: python -m benchmarks.one NAME --size SIZE --out FILE

Writes its ratios, and the versions that they were measured with, as JSON. `benchmarks.suite` starts
this, in the environment that the member needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.members import chosen
from benchmarks.ratios import Size
from kvrescue.errors import KVRescueError
from kvrescue.evaluation.files import write_whole
from kvrescue.evaluation.surroundings import versions

__all__ = ["measured"]


def measured(name: str, size: Size) -> dict[str, Any]:
    """Plain data: `ratios`, and `versions` of what they were measured with."""
    (member,) = chosen([name])
    ratios = [ratio.as_dict() for ratio in member.ratios(size)]
    return {"versions": versions(), "ratios": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--size", type=Size, choices=list(Size), default=Size.FULL)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        found = measured(args.name, args.size)
    except KVRescueError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    write_whole(args.out, json.dumps(found, allow_nan=False).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
