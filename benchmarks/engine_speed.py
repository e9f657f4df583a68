"""Committed steps per second: event-driven against lock-step, and against `generate`.

All sides do stepwise best-of-N with the tiny base model and the tiny reward model, with the same
sampling options and limits. The base has full context, so that `generate` can do the same work, and
its steps are alike; once more, for the first two sides, it is evicted, and they are not:

- event-driven: the engine as it is, every problem at its own pace.
- lock-step: the same engine and the same work, but no problem is scored before all have their
  candidates, so that everybody waits for the longest.
- generate: for all problems in one left-padded batch per step, `generate(num_return_sequences=N)`
  from the whole text of prompt and committed steps, then one batched forward of the reward model
  over the N whole texts. One problem after the other, as is usual, it takes about as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.ratios import Ratio, Side, Size, Turns, in_turns, rate
from benchmarks.rescoring import Rescorer
from kvrescue import Limits, Proposer, Question, Rescue, Sampling
from kvrescue.engine.checkpoint import resolve
from kvrescue.engine.live import LiveRows
from kvrescue.evaluation.bill import bills
from kvrescue.evictors import RKV
from kvrescue.policies import TorchPolicy
from kvrescue.scorers import QwenPRM
from kvrescue.scorers.base import Scorer
from kvrescue.types import Candidate, Context

__all__ = ["LockStep", "ratios"]

SAMPLING = Sampling(temperature=0.8, top_p=1.0, top_k=0, max_step_tokens=24)
UNEVEN = SAMPLING.model_copy(update={"max_step_tokens": 128})
MAX_OUTPUT = 256
EVENT, LOCK = "event-driven", "lock-step"


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


class LockStep(Scorer):
    """Another scorer, which scores nobody before everybody asks."""

    def __init__(self, inner: Scorer) -> None:
        self.inner = inner
        self.running = 0
        """Problems under way; to be set before they start."""
        self._waiting: list[asyncio.Future[None]] = []

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        arrived = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        self._go_on()
        await arrived
        return await self.inner.score(context, candidates)

    async def release(self, context: Context) -> None:
        await self.inner.release(context)
        self.running -= 1
        self._go_on()

    def _go_on(self) -> None:
        if len(self._waiting) >= self.running:
            for arrived in self._waiting:
                if not arrived.done():
                    arrived.set_result(None)
            self._waiting.clear()


def run_peer(peer: Peer, questions: Sequence[str]) -> float:
    """Committed steps."""
    steps = 0
    runs = [peer.start(q) for q in questions]
    while active := [r for r in runs if not r.done]:
        peer.step(active)
        steps += len(active)
    return float(steps)


def run_engine(rescue: Rescue, questions: Sequence[str]) -> float:
    """Committed steps."""
    solutions = rescue.solve_many([Question(q, str(i)) for i, q in enumerate(questions)])
    return float(sum(len(s.steps) for s in solutions))


class Pair:
    """The same work with and without everybody waiting for the longest candidate."""

    def __init__(self, base: TorchPolicy, prm: QwenPRM, n: int, sampling: Sampling) -> None:
        self.barrier = LockStep(prm)
        event, lock = (
            Rescue(
                [Proposer(base, n=n, name="base")],
                scorer,
                sampling=sampling,
                limits=Limits(max_output_tokens=MAX_OUTPUT),
            )
            for scorer in (prm, self.barrier)
        )
        self.rescues = {EVENT: event, LOCK: lock}
        self.passes: dict[str, float] = {}
        """Forward passes of the base's candidates in the last turn of either."""

    def run(self, name: str, questions: Sequence[str]) -> float:
        """Committed steps."""
        self.barrier.running = len(questions)
        step, passes = LiveRows.step, 0

        def counted(rows: LiveRows) -> None:
            nonlocal passes
            passes += 1
            step(rows)

        with patch.object(LiveRows, "step", counted):
            done = run_engine(self.rescues[name], questions)
        self.passes[name] = float(passes)
        return done

    def in_turns(self, questions: Sequence[str], turns: int) -> Turns:
        """Committed steps per second of CPU."""
        return in_turns(
            {name: partial(rate, partial(self.run, name, questions)) for name in self.rescues},
            turns,
        )


def ratios(size: Size) -> list[Ratio]:
    n = size.pick(8, 8, 2)
    questions = [b.question for b in bills("test", seed=5, count=size.pick(16, 8, 2))]
    prm, base = QwenPRM("tiny/prm"), TorchPolicy("tiny/base")
    alike = Pair(base, prm, n, SAMPLING)
    scheduled = alike.in_turns(questions, size.pick(5, 2, 1))

    some = questions[: size.pick(8, 4, 2)]
    evicted = TorchPolicy("tiny/base", evictor=RKV(budget=16, window=8))
    uneven = Pair(evicted, prm, n, UNEVEN)
    unevenly = uneven.in_turns(some, size.pick(2, 1, 1))

    few = questions[: size.pick(4, 4, 1)]
    peer, engine = Peer(n, prm), alike.rescues[EVENT]
    generated = in_turns(
        {
            "engine": partial(rate, partial(run_engine, engine, few)),
            "generate": partial(rate, partial(run_peer, peer, few)),
        },
        size.pick(3, 1, 1),
        warm_up=(),
    )
    for pair in (alike, uneven):
        for rescue in pair.rescues.values():
            rescue.close()
    unit = "committed steps per second of CPU, best-of-{} of {} problems in flight"
    return [
        Ratio(
            name="event-driven over lock-step, steps alike",
            above=Side(EVENT, scheduled[EVENT]),
            below=Side(LOCK, scheduled[LOCK]),
            unit=unit.format(n, len(questions)),
            clock="cpu",
            means="What it brings that nobody waits for the longest candidate of anybody else; the "
            "engine, the candidates and the reward model are the same. At 1, it costs nothing.",
            means_not="the gain where steps differ in length: those of this task hardly do.",
        ),
        Ratio(
            name="event-driven over lock-step, steps uneven",
            above=Side(EVENT, unevenly[EVENT]),
            below=Side(LOCK, unevenly[LOCK]),
            unit=unit.format(n, len(some)),
            clock="cpu",
            means="The same with an evicted base and no detector: some candidates babble up to the "
            f"limit of {UNEVEN.max_step_tokens} tokens, and in lock-step all problems wait for "
            "them.",
            means_not="a GPU: on a CPU a row costs what it costs, in a full batch or a small one.",
        ),
        Ratio(
            name="lock-step over event-driven, steps uneven, forward passes",
            above=Side(LOCK, (uneven.passes[LOCK],)),
            below=Side(EVENT, (uneven.passes[EVENT],)),
            unit="passes of the base's candidates for the same tokens",
            clock="none",
            means="Passes saved by problems that go on while others babble: what counts where a "
            "pass takes as long for few rows as for many, as on a GPU.",
            means_not="time on a CPU; the ratio above is.",
        ),
        Ratio(
            name="engine over generate",
            above=Side("engine", generated["engine"]),
            below=Side("transformers.generate, lock-step", generated["generate"]),
            unit=unit.format(n, len(few)),
            clock="cpu",
            means="The way it is done without an engine of one's own: every step reads prompt and "
            "steps again, for policy and reward model, all problems in one batch.",
            means_not="a GPU, nor larger models: on models this small a forward pass costs nearly "
            "the same for one row as for fifty.",
        ),
    ]
