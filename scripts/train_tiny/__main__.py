"""Train the tiny trio and write it as Hugging Face folders.

    python -m scripts.train_tiny --seed 0 --out kvrescue/presets/tiny

One thread, CPU, deterministic by step counts: the same seed on the same machine gives the same
weights. `--only` repeats single stages from the folders that earlier ones wrote.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from kvrescue.evaluation.bill import Bill, bills
from scripts.train_tiny.batches import Encoder
from scripts.train_tiny.candidates import Source, sample_candidates
from scripts.train_tiny.language_model import Log, train_language_model
from scripts.train_tiny.prm_data import Sampled
from scripts.train_tiny.prm_model import save_prm
from scripts.train_tiny.prm_training import train_prm
from scripts.train_tiny.recipes import (
    BASE,
    CANDIDATE_BUDGETS,
    CANDIDATE_PROBLEMS,
    HELD_OUT_PROBLEMS,
    HELPER,
    PRM,
    evictor,
)
from scripts.train_tiny.tokenizer import build_tokenizer

STAGES = ("base", "helper", "prm")


def main() -> None:
    """Run the stages in order."""
    parser = argparse.ArgumentParser(prog="python -m scripts.train_tiny", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for base/, helper/, prm/")
    parser.add_argument("--only", choices=STAGES, action="append", help="stages to run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    encoder = Encoder(tokenizer)
    started = time.monotonic()

    def log(text: str) -> None:
        print(f"[{time.monotonic() - started:6.0f} s] {text}", flush=True)

    for stage in arguments.only or STAGES:
        folder = arguments.out / stage
        log(f"stage {stage}")
        if stage == "prm":
            _make_prm(arguments.out, encoder, arguments.seed, log)
        else:
            recipe = BASE if stage == "base" else HELPER
            train_language_model(recipe, encoder, arguments.seed, log).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    log("done")


def _make_prm(out: Path, encoder: Encoder, seed: int, log: Log) -> None:
    base = AutoModelForCausalLM.from_pretrained(out / "base", dtype=torch.float32).eval()
    sources = [Source(base, evictor(budget)) for budget in CANDIDATE_BUDGETS]

    def draw(problems: list[Bill], draw_seed: int) -> list[Sampled]:
        problems = sorted(problems, key=lambda bill: len(bill.purchases))  # even batches
        drawn = sample_candidates(sources, problems, encoder, draw_seed)
        return [_wrong_ones(b, steps, encoder) for b, steps in zip(problems, drawn, strict=True)]

    sampled = draw(bills("train", seed, CANDIDATE_PROBLEMS), seed)
    held_out = draw(bills("validation", 10_000 + seed, HELD_OUT_PROBLEMS), seed + 1)
    count = sum(len(step) for example in sampled for step in example.wrong)
    log(f"{count} distinct wrong steps sampled along {len(sampled)} right solutions")
    save_prm(train_prm(base, sampled, held_out, encoder, PRM, seed, log), out / "prm")


def _wrong_ones(bill: Bill, steps: list[set[tuple[int, ...]]], encoder: Encoder) -> Sampled:
    rights = [tuple(encoder.text(step)) for step in bill.steps]
    wrong = [sorted(drawn - {right}) for drawn, right in zip(steps, rights, strict=True)]
    return Sampled(bill, wrong)


if __name__ == "__main__":
    main()
