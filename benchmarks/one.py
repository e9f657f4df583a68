"""Run one member in this process: python -m benchmarks.one MODULE --size SIZE --out FILE

Writes its ratios, and the versions that they were measured with, as JSON. `benchmarks.suite` starts
this, in the environment that the member needs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.arguments import told
from benchmarks.ratios import Ratio, Size
from kvrescue.evaluation.files import write_whole
from kvrescue.evaluation.surroundings import versions

__all__ = ["measured"]


def measured(module: str, size: Size) -> dict[str, Any]:
    """Plain data: `ratios`, and `versions` of what they were measured with."""
    measure: Callable[[Size], list[Ratio]] = importlib.import_module(module).ratios
    ratios = [ratio.as_dict() for ratio in measure(size)]
    return {"versions": {**versions(), **_peers()}, "ratios": ratios}


def _peers() -> dict[str, str]:
    """Versions of the peers that this process has loaded."""
    return {"its-hub": metadata.version("its-hub")} if "its_hub" in sys.modules else {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one", description=__doc__)
    parser.add_argument("module", help="with a function `ratios(size)`")
    parser.add_argument("--size", type=Size, choices=list(Size), default=Size.FULL)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    def work() -> None:
        found = measured(args.module, args.size)
        write_whole(args.out, json.dumps(found, allow_nan=False).encode())

    return told(work)


if __name__ == "__main__":
    sys.exit(main())
