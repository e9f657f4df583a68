"""Admission by itself: order, urgency, refusals, and an error instead of waiting for ever."""

from __future__ import annotations

import asyncio

import pytest

from kvrescue.errors import CapacityError
from kvrescue.policies.vllm import admission as module
from kvrescue.policies.vllm.admission import Admission


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_come_first_served() -> None:
    pool = Admission(10, lambda: 0)
    await pool.wait(8, "")
    big = asyncio.create_task(pool.wait(6, ""))
    await settle()
    small = asyncio.create_task(pool.wait(1, ""))
    await settle()
    assert not big.done()
    assert not small.done()
    pool.give(8)
    await asyncio.gather(big, small)
    assert (pool.promised, pool.free) == (7, 3)


async def test_what_is_open_comes_before_what_waits_to_open() -> None:
    pool = Admission(10, lambda: 0)
    await pool.wait(8, "")
    opening = asyncio.create_task(pool.wait(6, ""))
    await settle()
    await pool.wait(2, "", urgent=True)
    assert pool.free == 0
    urgent = asyncio.create_task(pool.wait(2, "", urgent=True))
    await settle()
    pool.give(2)
    await urgent
    pool.give(10)
    await opening
    assert pool.promised == 6


async def test_what_never_fits_is_refused() -> None:
    pool = Admission(10, lambda: 0)
    with pytest.raises(CapacityError, match="the pool has 10; do this"):
        await pool.wait(11, "do this")
    pool.take(7, "")
    with pytest.raises(CapacityError, match="3 of 10 are free; do that"):
        pool.take(4, "do that")
    assert pool.promised == 7


async def test_those_who_give_up_take_nothing_along() -> None:
    pool = Admission(10, lambda: 0)
    await pool.wait(8, "")
    gone, stays = (asyncio.create_task(pool.wait(n, "")) for n in (5, 2))
    await settle()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await stays
    assert pool.promised == 10
    late = asyncio.create_task(pool.wait(4, ""))
    await settle()
    pool.give(10)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert pool.promised == 0


async def test_waiting_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.05)
    steps = 0
    pool = Admission(10, lambda: steps)
    await pool.wait(8, "")
    waits = asyncio.create_task(pool.wait(5, "do less at a time"))
    for _ in range(4):
        await asyncio.sleep(0.04)
        steps += 1
    assert not waits.done()
    with pytest.raises(CapacityError, match="do less at a time"):
        await waits
    assert pool.promised == 8
