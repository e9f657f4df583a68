"""The recipes of the shipped trio, and the eviction it is made for."""

from __future__ import annotations

from kvrescue.evictors import RKV
from scripts.train_tiny.initialisation import ModelSize
from scripts.train_tiny.language_model import Recipe
from scripts.train_tiny.prm_training import PrmRecipe

BASE = Recipe(
    size=ModelSize(
        layers=3, width=128, feed_forward=256, number_periods=(2, 5, 10, 20, 40, 100, 200, 400)
    ),
    steps=1000,
    tokens_per_batch=2816,
    first_menu=12,
    decay=0.5,
    early_sum_drill_rate=0.5,
    look_up_noise=0.014,
)

HELPER = Recipe(
    size=ModelSize(layers=2, width=64, feed_forward=96, number_periods=(40, 100, 200, 400)),
    steps=2000,
    tokens_per_batch=2560,
    first_menu=16,
    decay=0.6,
    look_up_noise=0.025,
    largest_taught_sum=80,
)

PRM = PrmRecipe(steps=700)

MAX_STEP_TOKENS = 24
MAX_OUTPUT_TOKENS = 256
BUDGETS = (16, 64, 96, 128)
"""The budgets that are reported: from nearly nothing kept to nearly everything."""
CANDIDATE_BUDGETS = (16, 32)
"""Where the PRM's hard examples are sampled."""
CANDIDATE_PROBLEMS = 120
HELD_OUT_PROBLEMS = 24


def evictor(budget: int) -> RKV:
    """R-KV as the tiny preset configures it, after every token."""
    return RKV(budget=budget, window=12, observation=8, kernel_size=7, interval=1)
