"""Work without worker processes, for tests that ask what came of it, not who did it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import pytest

from kvrescue.evaluation.workers import Found


def in_this_process(
    work: Callable[[Any], Iterable[Any]], tasks: Sequence[Any], workers: int
) -> Generator[Found[Any], None, None]:
    """`in_workers`, without a process that has to import torch first."""
    for number, task in enumerate(tasks):
        for message in work(task):
            yield Found(number, message, done=False)
        yield Found(number, None, done=True)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of problem sets are carried out in this process."""
    monkeypatch.setattr("kvrescue.evaluation.runs.run.in_workers", in_this_process)
