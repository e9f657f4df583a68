"""Committed steps per second: the engine against `transformers.generate` re-prefilling each step.

Both sides do stepwise best-of-N with the tiny base model (full context, so that `generate` can do
the same work) and the tiny reward model, with the same sampling options and limits. The peers:

- per problem: for one problem after the other, `generate(num_return_sequences=N)` from the whole
  text of prompt and committed steps, then one batched forward of the reward model over the N whole
  texts. The usual way.
- lock-step: the same, but all problems in one left-padded batch per step, waiting for the slowest.

Run: python -m benchmarks.engine_speed [--problems 32] [--n 8]
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.rescoring import Rescorer
from kvrescue import Limits, Proposer, Question, Rescue, Sampling
from kvrescue.engine.checkpoint import resolve
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV
from kvrescue.policies import TorchPolicy
from kvrescue.scorers import QwenPRM

SAMPLING = Sampling(temperature=0.8, top_p=1.0, top_k=0, max_step_tokens=24)
MAX_OUTPUT = 256


@dataclass
class Run:
    """One trajectory of a peer."""

    question: str
    ids: list[int]
    prompt: int
    steps: list[str] = field(default_factory=list)
    done: bool = False


class Peer:
    """Stepwise best-of-N the way it is done without an engine of one's own."""

    def __init__(self, n: int, prm: QwenPRM) -> None:
        checkpoint = resolve("tiny/base")
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
        self.model.eval()
        self.n, self.rescorer = n, Rescorer(prm)
        self.separator = self.tokenizer.convert_tokens_to_ids("\n\n")
        self.eos = self.tokenizer.eos_token_id

    def start(self, question: str) -> Run:
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return Run(question, ids, len(ids))

    @torch.no_grad()
    def step(self, runs: list[Run]) -> None:
        """One step of all `runs` in one batch."""
        longest = max(len(r.ids) for r in runs)
        ids = torch.full((len(runs), longest), self.eos)
        mask = torch.zeros_like(ids)
        for i, run in enumerate(runs):
            ids[i, longest - len(run.ids) :] = torch.tensor(run.ids)
            mask[i, longest - len(run.ids) :] = 1
        out = self.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=SAMPLING.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=SAMPLING.max_step_tokens,
            num_return_sequences=self.n,
            eos_token_id=[self.separator, self.eos],
            pad_token_id=self.eos,
        )[:, longest:].tolist()
        steps = [self.cut(tokens) for tokens in out]
        decoded = [str(self.tokenizer.decode(s, skip_special_tokens=True)) for s in steps]
        texts = [decoded[i * self.n : (i + 1) * self.n] for i in range(len(runs))]
        scores = self.rescorer.score([(r.question, r.steps) for r in runs], texts)
        for i, run in enumerate(runs):
            best = scores[i].index(max(scores[i]))
            chosen = steps[i * self.n + best]
            run.ids += chosen
            run.steps.append(texts[i][best])
            used = len(run.ids) - run.prompt
            run.done = chosen[-1] == self.eos or used >= MAX_OUTPUT or not texts[i][best].strip()

    def cut(self, tokens: list[int]) -> list[int]:
        for i, token in enumerate(tokens):
            if token in (self.separator, self.eos):
                return tokens[: i + 1]
        return tokens


def run_peer(peer: Peer, questions: list[str], lock_step: bool) -> tuple[int, float]:
    started, steps = time.perf_counter(), 0
    groups = [questions] if lock_step else [[q] for q in questions]
    for group in groups:
        runs = [peer.start(q) for q in group]
        while active := [r for r in runs if not r.done]:
            peer.step(active)
            steps += len(active)
    return steps, time.perf_counter() - started


def run_engine(rescue: Rescue, questions: list[str]) -> tuple[int, float]:
    started = time.perf_counter()
    solutions = list(rescue.solve_many([Question(q, str(i)) for i, q in enumerate(questions)]))
    return sum(len(s.steps) for s in solutions), time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--n", type=int, default=8)
    args = parser.parse_args()
    questions = [b.question for b in bills("test", seed=5, count=args.problems)]
    prm = QwenPRM("tiny/prm")
    options = {"sampling": SAMPLING, "limits": Limits(max_output_tokens=MAX_OUTPUT)}
    full = Rescue([Proposer(TorchPolicy("tiny/base"), n=args.n, name="base")], prm, **options)
    evicted_base = TorchPolicy("tiny/base", evictor=RKV(budget=16, window=12))
    evicted = Rescue([Proposer(evicted_base, n=args.n, name="base")], prm, **options)
    run_engine(full, questions[:2])  # warm up
    peer = Peer(args.n, prm)
    sides = {
        "engine, full context": run_engine(full, questions),
        "engine, evicted every token": run_engine(evicted, questions),
        "generate, per problem": run_peer(peer, questions, lock_step=False),
        "generate, lock-step batch": run_peer(peer, questions, lock_step=True),
    }
    rates = {name: steps / seconds for name, (steps, seconds) in sides.items()}
    report = {
        name: {
            "steps": sides[name][0],
            "seconds": round(sides[name][1], 2),
            "steps_per_second": round(rate, 1),
            "engine_is_faster_by": round(rates["engine, full context"] / rate, 2),
        }
        for name, rate in rates.items()
    }
    print(json.dumps({"problems": args.problems, "n": args.n, "sides": report}, indent=2))


if __name__ == "__main__":
    main()
