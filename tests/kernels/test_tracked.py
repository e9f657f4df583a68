"""What numba compiles for tracked scores equals what torch computes."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.alpha import Cache
from kvrescue import kernels
from kvrescue.engine.eviction import _forget
from kvrescue.errors import EvictorError
from kvrescue.evictors import RKV, Evictor, SnapKV
from kvrescue.kernels import _tracked as machine
from kvrescue.kernels import states, tracked
from tests.engine.test_tracking import RKVS, SCHEDULES, SNAPKVS, tracked_equals_scratch

CPU = torch.device("cpu")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_chosen_where_numba_is() -> None:
    assert kernels.compiled(CPU)
    assert not kernels.compiled(torch.device("cuda"))
    with kernels.using("off"):
        assert not kernels.compiled(CPU)


def test_the_same_numbers_on_both_sides() -> None:
    for name in states.__all__:
        assert getattr(machine, name) == getattr(states, name)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_works_whatever_the_defaults(dtype: torch.dtype, device: str) -> None:
    before = torch.get_default_dtype()
    order, gone, slots = torch.tensor([[[1, 0, 2]], [[0] * 3], [[1] * 3]]).unsqueeze(1)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            kernels._try_compiled()  # warnings are errors here
            tracked.forget(order, gone[:, :, :1], slots[:, :, :1])
    finally:
        torch.set_default_dtype(before)
    assert order[0, 0, :2].tolist() == [0, 1]


def test_what_cannot_be_kept_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KEPT", [True, False])
    kernels._numba_obstacle.cache_clear()
    with pytest.warns(RuntimeWarning, match="let NUMBA_CACHE_DIR name a folder"):
        assert kernels.compiled(CPU)
    assert kernels.compiled(CPU)  # told once


def test_no_folder_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(**options: object) -> Any:
        if "cache" in options:
            raise RuntimeError("no locator available")
        return lambda function: function

    monkeypatch.setattr(machine, "njit", njit)
    monkeypatch.setattr(machine, "KEPT", [])
    assert machine.compiled(abs) is abs
    assert machine.KEPT == [False]


@pytest.mark.parametrize("asked", [1, 2, 5])
def test_one_pool_whatever_torch_has(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads is read once: it may change meanwhile."""
    answers = [asked]
    monkeypatch.setattr(torch, "get_num_threads", answers.pop)
    parts: list[tuple[int, int]] = []
    pool = tracked._pool()
    tracked._spread(lambda first, last: parts.append((first, last)), 640)
    assert sorted(parts) == [(640 * i // asked, 640 * (i + 1) // asked) for i in range(asked)]
    assert tracked._pool() is pool


@given(method=st.one_of(RKVS, SNAPKVS), **SCHEDULES)
@settings(max_examples=80)
def test_tracked_scores_equal_scores_from_scratch(**schedule: Any) -> None:
    tracked_equals_scratch(["auto"], **schedule)


@given(method=st.one_of(RKVS, SNAPKVS), **SCHEDULES)
@settings(max_examples=40)
def test_torch_and_numba_take_over_from_each_other(**schedule: Any) -> None:
    """What is remembered is the same on both sides."""
    tracked_equals_scratch(["auto", "off", "off", "auto"], **schedule)


@pytest.mark.parametrize("common", [0.0, 1.5])
@pytest.mark.parametrize(
    "evictor",
    [
        RKV(budget=16, window=8),
        RKV(budget=16, window=8, similarity_threshold=None),
        SnapKV(budget=16, window=8),
    ],
    ids=["rkv", "rkv, no threshold", "snapkv"],
)
def test_the_same_entries_stay(evictor: Evictor, common: float) -> None:
    """With the geometry of a real model; keys with and without matches."""
    kept = []
    for choice in ("off", "auto"):
        cache = Cache(evictor, "smollm2", 1, common, seed=3)
        for _ in range(12):
            cache.append(1)
            with kernels.using(choice):  # type: ignore[arg-type]
                cache.fire()
        kept.append(cache.store.entries["positions"][:, :, :, : evictor.bound])
    assert torch.equal(*kept)
    assert bool((kept[0].amin(3) > 0).any())  # from some heads even the oldest entry has left


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e19, 1e-25])
@pytest.mark.parametrize("place", ["oldest key", "newest key", "query 0", "query 1", "query 2"])
@pytest.mark.parametrize(
    "evictor", [RKV(budget=16, window=8), SnapKV(budget=16, window=8)], ids=repr
)
def test_what_is_extreme_is_told_or_kept_alike(evictor: Evictor, place: str, bad: float) -> None:
    found = []
    for choice in ("off", "auto"):
        cache = Cache(evictor, "smollm2", 1, 1.5, seed=3)
        told = ""
        for number in range(12):
            cache.append(1)
            if number == 2:
                spoil(cache, place, bad)
            try:
                with kernels.using(choice):  # type: ignore[arg-type]
                    cache.fire()
            except EvictorError as error:
                told = f"{number}: {error}"
                break
        places = cache.store.entries["positions"][:, :, :, : evictor.bound]
        found.append((told, [] if told else places.tolist()))
    assert found[0] == found[1]


def spoil(cache: Cache, place: str, bad: float) -> None:
    """Of one KV head."""
    store = cache.store
    if place.startswith("query"):
        head = int(place.removeprefix("query "))
        ring = store.shape.observation
        store.heads["queries"][0, 0, head, (int(store.logical[0]) - 1) % ring, 1] = bad
    else:
        rank = 0 if place == "oldest key" else int(store.length[0]) - 1
        store.keys[0, 0, 0, store.entries["order"][0, 0, 0, rank], 1] = bad


@given(data=st.data(), length=st.integers(2, 12), rows=st.integers(1, 3))
def test_orders_close_their_gaps(data: st.DataObject, length: int, rows: int) -> None:
    """As torch closes them; the newest entries take the slots of those that leave."""
    dropped = data.draw(st.integers(1, length // 2))
    kept = length - dropped
    made = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    older = torch.argsort(torch.rand(rows, 2, kept, generator=made), dim=2)
    newest = torch.arange(kept, length).expand(rows, 2, -1)
    order = torch.cat((older, newest), dim=2)
    gone = torch.argsort(torch.rand(rows, 2, kept, generator=made), dim=2)[..., :dropped]
    gone = gone.sort(dim=2).values
    slots = order.gather(2, gone)
    found = []
    for forget in (partial(_forget, sources=newest, newest=True), tracked.forget):
        cache = torch.full((rows, 2, length + 3), -7)  # a view of more
        cache[:, :, :length] = order
        forget(cache[:, :, :length], gone=gone, slots=slots)
        found.append(cache[:, :, :kept].clone())
        assert bool((cache[:, :, length:] == -7).all())
    assert torch.equal(*found)
    assert torch.equal(found[0].sort(dim=2).values, torch.arange(kept).expand(rows, 2, -1))


@pytest.mark.usefixtures("threads")
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    evictor = RKV(budget=16, window=8)
    states = []
    parts: list[tuple[int, int]] = []
    work = machine.rkv_pairs

    def noted(first: int, last: int, *arguments: Any) -> None:
        parts.append((first, last))
        work(first, last, *arguments)

    monkeypatch.setattr(machine, "rkv_pairs", noted)
    for least in (10**9, 64):
        monkeypatch.setattr(tracked, "_LEAST", least)
        parts.clear()
        cache = Cache(evictor, "smollm2", 3, 1.5, seed=4)  # 270 pairs
        states.append(torch.cat([v.flatten().double() for v in cache.store.entries.values()]))
    assert sorted(parts[-3:]) == [(0, 90), (90, 180), (180, 270)]
    assert torch.equal(*states)


def test_no_threads_are_started_when_python_ends() -> None:
    """Then a pool refuses work: the caller does it."""
    code = (
        "import atexit, torch\n"
        "from benchmarks.alpha import Cache\n"
        "from kvrescue.evictors import RKV\n"
        "torch.set_num_threads(2)\n"
        "cache = Cache(RKV(budget=16, window=8), 'smollm2', 2, 1.5, 0)\n"
        "atexit.register(lambda: (cache.append(1), cache.fire(), print(cache.store.length)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert (ran.stdout, ran.stderr) == ("[24 24]\n", "")


ASKED = "import torch\nfrom kvrescue import kernels\nprint(kernels.compiled(torch.device('cpu')))\n"


def asked(**environment: str) -> tuple[str, str]:
    """Whether numba is used in a process of its own, and what it warns of."""
    ran = subprocess.run(
        [sys.executable, "-c", ASKED],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return ran.stdout, ran.stderr


def test_a_numba_that_compiles_nothing_is_told() -> None:
    output, warned = asked(NUMBA_DISABLE_JIT="1")
    assert output == "False\n"
    assert "numba does not work here: NotImplementedError" in warned
    assert "; kvrescue computes with torch instead (KVRESCUE_KERNELS=off" in warned


def test_what_is_kept_and_damaged_is_told_with_its_folder(tmp_path: Path) -> None:
    assert asked(NUMBA_CACHE_DIR=str(tmp_path)) == ("True\n", "")
    kept = list(tmp_path.rglob("*.nbc"))
    assert kept
    for file in kept:
        file.write_bytes(file.read_bytes()[:100])
    output, warned = asked(NUMBA_CACHE_DIR=str(tmp_path))
    assert output == "False\n"
    assert f"if what numba keeps in {kept[0].parent} is damaged, delete it" in warned


def test_a_fork_has_threads_of_its_own() -> None:
    code = (
        "import os, sys, torch\n"
        "from benchmarks.alpha import Cache\n"
        "from kvrescue.evictors import RKV\n"
        "torch.set_num_threads(2)\n"
        "cache = Cache(RKV(budget=16, window=8), 'smollm2', 2, 1.5, 0)\n"
        "torch.set_num_threads(1)  # of torch's own, which do not survive\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    from kvrescue.kernels import tracked\n"
        "    print(list(tracked._pool().map(abs, [-1])), flush=True)\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, "[1]\n")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("entry", [2, -1])
def test_what_is_not_finite_is_told(value: float, entry: int) -> None:
    """An old key, or the one that is new."""
    found = []
    for choice in ("off", "auto"):
        cache = Cache(RKV(budget=16, window=8), "smollm2", 1, 1.5, seed=5)
        cache.append(1)
        cache.store.keys[0, 3, 1, int(cache.store.length[0]) - 1 if entry < 0 else entry] = value
        with kernels.using(choice), pytest.raises(EvictorError) as caught:  # type: ignore[arg-type]
            cache.fire()
        found.append(str(caught.value))
    assert found[0] == found[1]
    assert "row 3, head 1" in found[0]


@given(st.floats(-110.0, 0.0, width=32))
def test_exponentials(x: float) -> None:
    """Down to the smallest float32 there is."""
    found = float(machine.exp(np.float32(x)))
    assert math.isclose(found, math.exp(x), rel_tol=1e-7 * (4 + abs(x)), abs_tol=1.5e-45)


def test_exponentials_at_the_ends() -> None:
    assert machine.exp(np.float32(0.0)) == 1.0
    for x in (-104.0, -1e30, -math.inf):
        assert machine.exp(np.float32(x)) == 0.0
    assert math.isnan(machine.exp(np.float32(math.nan)))


@given(
    st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=20),
    st.sampled_from([1, 3, 5, 7, 31]),
)
def test_pooling(values: list[float], kernel_size: int) -> None:
    given_, out = np.array(values, np.float32), np.empty(len(values), np.float32)
    half = kernel_size // 2
    near = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    machine.pool(given_, half, True, out)
    assert out.tolist() == [max(some) for some in near]
    machine.pool(given_, half, False, out)
    np.testing.assert_allclose(out, [sum(some) / kernel_size for some in near], atol=1e-5)


@given(length=st.integers(1, 7), dim=st.integers(1, 9), columns=st.integers(0, 9))
def test_products(length: int, dim: int, columns: int) -> None:
    """Also where keys come in pairs, vectors in fours, and some are left."""
    made = np.random.default_rng(length + 100 * dim)
    keys = made.standard_normal((length, dim), np.float32)
    right = made.standard_normal((columns, dim), np.float32)
    products = np.full((columns, length), np.nan, np.float32)
    machine.multiply(keys.ravel(), right, products)
    np.testing.assert_allclose(products, right @ keys.T, rtol=1e-5, atol=1e-6)


def test_views_that_are_no_lines() -> None:
    value = torch.zeros(2, 3, 4, 5)
    for wrong in (value.transpose(0, 1), value[:, :, :, ::2]):
        with pytest.raises(ValueError, match="lie at equal distances"):
            tracked._lines(wrong)
    flat, stride = tracked._lines(value[1:, :, :2])
    assert (len(flat), stride) == (2 * 20 + 10, 20)
    assert list(itertools.islice(flat, 2)) == [0.0, 0.0]


@given(
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.integers(1, 4),
    more=st.integers(0, 2),
)
def test_lines_are_found_where_they_lie(rows: int, heads: int, length: int, more: int) -> None:
    """Of all rows and of some, with one head or many, whatever room is behind."""
    slots = length + more
    whole = torch.arange(rows * heads * slots * 2).view(rows, heads, slots, 2)
    for first in range(rows):
        value = whole[first:, :, :length]
        flat, stride = tracked._lines(value)
        lines = [flat[i * stride :][: length * 2] for i in range(len(value) * heads)]
        assert np.array_equal(np.stack(lines), value.flatten(0, 1).flatten(1))


def test_nothing_to_do() -> None:
    state = {"total": torch.zeros(0, 2, 4)}
    keys, order = torch.zeros(0, 2, 5, 4), torch.zeros(0, 2, 5, dtype=torch.int64)
    options: Any = {"new": 1, "window": 2, "kernel_size": 3, "lam": 0.1, "threshold": None}
    logical = torch.zeros(0, dtype=torch.int64)
    assert tracked.score_rkv(keys, keys, order, logical, state, **options).shape == (0, 2, 5)
    options = {"window": 2, "kernel_size": 3, "pooling": "max"}
    assert tracked.score_snapkv(keys, keys, order, logical, keys, **options).shape == (0, 2, 5)
    none = torch.zeros(1, 2, 0, dtype=torch.int64)
    order = torch.arange(5).expand(1, 2, 5).contiguous()
    state = {"total": torch.ones(1, 2, 4), "inverse": torch.ones(1, 2, 5)}
    tracked.drop(torch.ones(1, 2, 5, 4), order, state, none, none)
    tracked.forget(order, none, none)
    assert torch.equal(state["total"], torch.ones(1, 2, 4))
    assert torch.equal(state["inverse"], torch.ones(1, 2, 5))
    assert torch.equal(order, torch.arange(5).expand(1, 2, 5))
