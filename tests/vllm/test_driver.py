"""Drivers: what happens to whoever waits when vLLM cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from kvrescue.errors import PolicyError
from kvrescue.policies.vllm.policy import VLLMPolicy
from tests.policies.parts import BASE, questions, step

CALLS = {"step": 2, "add_request": 4, "abort_request": 1}
"""Methods of vLLM's engine, and the call in which an error comes."""


@pytest.fixture
def policy() -> Iterator[VLLMPolicy]:
    policy = VLLMPolicy(BASE, kv_cache_bytes=16 << 20)
    yield policy
    asyncio.run(policy.aclose())


def raise_after(owner: Any, name: str, calls: int, error: BaseException) -> None:
    """In one call of a method, when all is done."""
    stock, left = getattr(owner, name), calls

    def method(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        result = stock(*args, **kwargs)
        left -= 1
        if left == 0:
            raise error
        return result

    setattr(owner, name, method)


INTERRUPTS = [(name, error) for name in CALLS for error in (KeyboardInterrupt(), SystemExit(3))]


@pytest.mark.parametrize(("name", "error"), [*INTERRUPTS, ("step", RuntimeError("lost"))])
def test_who_waits_hears_of_what_ended_the_engine(
    policy: VLLMPolicy, name: str, error: BaseException
) -> None:
    """Ctrl-C, too, on a loop that its owner runs: of two problems at work, one gives up."""
    driver = policy.engine.driver
    raise_after(driver.llm, name, CALLS[name], error)

    async def solve(number: int) -> None:
        view = await policy.open(questions(2)[number], "base")
        await view.propose(2, step(24), (), [1, 2], 512)

    async def give_up() -> None:
        while driver.steps < 3 and not solving[1].done():  # noqa: ASYNC110 - turns
            await asyncio.sleep(0)
        solving[1].cancel()

    async def what_became_of_them() -> set[type]:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            assert not (await asyncio.wait(tasks, timeout=60))[1]
        return {type(task.exception()) for task in solving if not task.cancelled()}

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        solving = [loop.create_task(solve(number)) for number in range(2)]
        with contextlib.suppress(KeyboardInterrupt, SystemExit, PolicyError):
            loop.run_until_complete(asyncio.gather(*solving, give_up()))
        became = loop.run_until_complete(what_became_of_them())
        assert became - {type(error)} == {PolicyError}
        with pytest.raises(PolicyError, match="build the policy anew"):
            loop.run_until_complete(solve(0))
