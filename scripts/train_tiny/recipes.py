"""The recipes of the shipped trio."""

from __future__ import annotations

from scripts.train_tiny.initialisation import ModelSize
from scripts.train_tiny.language_model import Recipe

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
