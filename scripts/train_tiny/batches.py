"""Problems as tensors: where each kind of token stands, and the rows that training reads."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kvrescue.evaluation.bill import MAX_PRICE, Bill, draw_bill, sum_step
from kvrescue.types import SEPARATOR
from scripts.train_tiny.tokenizer import END_OF_TEXT, PROMPT_END, PROMPT_START, TOKEN_ID

IGNORED = -100
"""The label that cross-entropy skips."""

# One purchase is twelve tokens, "#1 |kale| 4|.|SEP|0| +| 4| = |4|.|SEP": the place of each in it.
BLOCK = 12
INDEX, ITEM, PRICE, TOTAL, PRICE_COPY, SUM = 0, 1, 2, 5, 7, 9


@dataclass
class Batch:
    """Rows of equal length; ``labels`` are the tokens themselves, masked or changed."""

    tokens: Tensor
    labels: Tensor
    prompt_length: int
    purchases: int

    def positions(self, place: int) -> Tensor:
        """Where one place of the block stands in every row."""
        count = self.purchases + (place in (INDEX, ITEM))  # "pay" is a last, short block
        return self.prompt_length + BLOCK * torch.arange(count) + place


class Encoder:
    """Turns problems into token ids with the tokenizer that is shipped."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def text(self, text: str) -> list[int]:
        """Token ids of a piece of a solution."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def prompt(self, bill: Bill) -> list[int]:
        """Token ids of the prompt."""
        return [TOKEN_ID[PROMPT_START], *self.text(bill.question), TOKEN_ID[PROMPT_END]]

    def solution(self, bill: Bill) -> list[int]:
        """Token ids of the right solution, with the end-of-text token."""
        return [*self.text(bill.solution), TOKEN_ID[END_OF_TEXT]]


def draw_rows(rng: random.Random, rows: int, menu_size: int, purchases: int) -> list[Bill]:
    """Training problems of one size, so that their rows have one length."""
    return [draw_bill(rng, "train", menu_size, purchases) for _ in range(rows)]


def solution_batch(encoder: Encoder, problems: list[Bill]) -> Batch:
    """Prompt and right solution of problems of one size; the loss is on the solution."""
    prompts = [encoder.prompt(bill) for bill in problems]
    solutions = [encoder.solution(bill) for bill in problems]
    tokens = torch.tensor([[*p, *s] for p, s in zip(prompts, solutions, strict=True)])
    labels = tokens.clone()
    labels[:, : len(prompts[0])] = IGNORED
    return Batch(tokens, labels, len(prompts[0]), len(problems[0].purchases))


def look_up_batch(
    encoder: Encoder, rng: random.Random, rows: int, menu_size: int
) -> tuple[Tensor, Tensor]:
    """Rows full of look-ups and nothing else, with labels on the looked-up tokens only.

    Each row repeats its menu in another order, then its numbered list twice.
    """
    purchases = min(8, menu_size)
    all_tokens, all_labels = [], []
    for bill in draw_rows(rng, rows, menu_size, purchases):
        price_of = dict(bill.prices)
        lines: list[tuple[str, int]] = []  # text, number of its last tokens that are look-ups
        lines += [(f"{item} {price_of[item]}", 1) for item in rng.sample(list(price_of), menu_size)]
        for _ in range(2):
            for place in rng.sample(range(purchases), purchases):
                item = bill.purchases[place]
                lines.append((f"#{place + 1} {item} {price_of[item]}", 2))
        tokens = encoder.prompt(bill)
        labels = [IGNORED] * len(tokens)
        for text, looked_up in lines:
            line = encoder.text(text)
            tokens += [*line, *encoder.text("." + SEPARATOR)]
            labels += [IGNORED] * (len(line) - looked_up) + line[-looked_up:] + [IGNORED] * 2
        all_tokens.append(tokens)
        all_labels.append(labels)
    return torch.tensor(all_tokens), torch.tensor(all_labels)


def sum_batch(
    encoder: Encoder, rng: random.Random, rows: int, largest: int
) -> tuple[Tensor, Tensor]:
    """Rows of sixteen unrelated additions each, with labels on the results only."""
    all_tokens, all_labels = [], []
    for _ in range(rows):
        tokens = [TOKEN_ID[PROMPT_START], TOKEN_ID[PROMPT_END]]
        labels = [IGNORED, IGNORED]
        for _ in range(16):
            price, total = rng.randint(1, MAX_PRICE), rng.randint(0, largest - MAX_PRICE)
            line = encoder.text(sum_step(total, price, total + price) + SEPARATOR)
            tokens += line
            labels += [IGNORED] * 4 + line[4:5] + [IGNORED] * 2
        all_tokens.append(tokens)
        all_labels.append(labels)
    return torch.tensor(all_tokens), torch.tensor(all_labels)
