"""Laws of the cost model, for any shapes and settings."""

from __future__ import annotations

import itertools
import math
import sys
from subprocess import run
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvrescue.cost import (
    GIB,
    METHODS,
    CostMethod,
    CostModel,
    Machine,
    ModelShape,
    alpha_from_crossover,
    crossover_length,
    eviction_saving,
    shape_of,
)
from kvrescue.errors import ConfigError

counts = st.integers(1, 64)
methods = st.sampled_from(METHODS)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    return ModelShape(
        name="m",
        layers=draw(counts),
        hidden=draw(st.integers(1, 8192)),
        kv_heads=draw(counts),
        head_dim=draw(st.sampled_from([16, 32, 64, 128])),
        query_width=draw(st.integers(1, 8192)),
        parameters=draw(st.integers(1, 10**11)),
    )


@st.composite
def models(draw: st.DrawFn) -> CostModel:
    return CostModel(
        base=draw(shapes()),
        helper=draw(shapes()),
        verifier=draw(st.none() | shapes()),
        n=draw(counts),
        helper_n=draw(st.none() | counts),
        length=draw(st.integers(1, 20_000)),
        budget=draw(st.integers(1, 4000)),
        window=draw(st.integers(0, 1000)),
        alpha=draw(st.floats(0, 5)),
        kv_element_bytes=draw(st.sampled_from([1, 2, 4])),
        weight_bytes=draw(st.sampled_from([0.5, 1, 2, 4])),
    )


def total(parts: dict[Any, Any]) -> Any:
    return sum(parts.values())


def but(model: CostModel, **changes: Any) -> CostModel:
    return CostModel(**{**dict(model), **changes})


@given(models(), methods, st.sampled_from(["length", "n", "helper_n", "budget", "window"]))
def test_memory_grows_with_all_there_is_of(
    model: CostModel, method: CostMethod, field: str
) -> None:
    value = model.helpers if field == "helper_n" else getattr(model, field)
    more = but(model, **{"helper_n": model.helpers} | {field: value + 1})
    assert total(more.kv_bytes(method)) >= total(model.kv_bytes(method))


@given(models(), st.integers(2, 5))
def test_memory_of_policies_is_proportional_to_candidates(model: CostModel, times: int) -> None:
    more = but(model, n=times * model.n, helper_n=times * model.helpers)
    for method in METHODS:
        once, often = model.kv_bytes(method), more.kv_bytes(method)
        for part in once:
            assert often[part] == (1 if part == "verifier" else times) * once[part]


@given(models())
def test_memory_by_hand(model: CostModel) -> None:
    """Eqs. 8, 9 and 11, written out."""
    b, h, size = model.base, model.helper, model.kv_element_bytes
    base = 2 * b.layers * b.kv_heads * b.head_dim * size
    helper = 2 * h.layers * h.kv_heads * h.head_dim * size
    held = min(model.length, model.budget + model.window)
    assert model.kv_bytes("full_best_of_n")["base"] == model.n * base * model.length
    assert model.kv_bytes("evicted_best_of_n")["base"] == model.n * base * held
    rescue = model.kv_bytes("kv_rescue")
    assert (rescue["base"], rescue["helper"]) == (
        model.n * base * held,
        model.helpers * helper * model.length,
    )
    assert ("verifier" in rescue) == (model.verifier is not None)


@given(models())
def test_memory_crossover_divides(model: CostModel) -> None:
    """KV-Rescue needs no more than full best-of-N from there on, and more before it."""
    less = total(model.kv_bytes("kv_rescue")) <= total(model.kv_bytes("full_best_of_n"))
    crossover = model.memory_crossover
    assert less == (crossover is not None and model.length >= crossover)
    assert (model.memory_ratio >= 1) == less
    if crossover is not None:
        assert crossover > model.bound


@given(models())
def test_a_helper_as_large_as_the_base_never_saves_memory(model: CostModel) -> None:
    same = but(model, helper=model.base, helper_n=model.n)
    assert same.memory_crossover is None
    assert same.memory_ratio < 1


@given(models())
def test_compute_crossover_divides(model: CostModel) -> None:
    if model.length <= model.bound:
        assert model.evicted_flops == model.base.decode_flops(model.length)
        assert model.evicted_gain == 0
        return
    gap = model.length - model.compute_crossover
    assume(abs(gap) > 1e-6 * model.length)
    full = model.base.decode_flops(model.length)
    assert (model.evicted_flops < full) == (gap > 0)


@given(models())
def test_compute_by_hand(model: CostModel) -> None:
    """Eqs. 12, 13 and 15, written out."""
    b, h, length = model.base, model.helper, model.length
    full = 2 * b.parameters + 4 * b.layers * b.query_width * length
    evicted = full
    if length > model.bound:
        bounded = 4 * b.layers * b.query_width * (model.budget + model.window)
        evicted = 2 * b.parameters + (1 + model.alpha) * bounded
    helper = 2 * h.parameters + 4 * h.layers * h.query_width * length
    assert b.decode_flops(length) == full
    assert model.evicted_flops == pytest.approx(evicted)
    assert model.helper_fraction == pytest.approx(helper / evicted)
    assert model.evicted_gain == pytest.approx(1 - evicted / full, abs=1e-12)


@given(models(), st.integers(1, 1000), st.floats(0, 2))
def test_evicted_compute_is_flat_in_length_and_grows_with_budget_and_alpha(
    model: CostModel, further: int, dearer: float
) -> None:
    evicting = but(model, length=model.bound + 2)
    longer = but(evicting, length=evicting.length + further)
    assert longer.evicted_flops == evicting.evicted_flops
    assert but(evicting, budget=model.budget + 1).evicted_flops >= evicting.evicted_flops
    assert but(evicting, alpha=model.alpha + dearer).evicted_flops >= evicting.evicted_flops


@given(st.integers(1, 4000), st.integers(0, 1000), st.integers(0, 20_000))
def test_alpha_and_crossover_are_inverse(budget: int, window: int, more: int) -> None:
    crossover = budget + window + more
    alpha = alpha_from_crossover(crossover, budget, window)
    assert crossover_length(budget, window, alpha) == pytest.approx(crossover)


@given(models())
def test_saving(model: CostModel) -> None:
    full = model.kv_bytes("full_best_of_n")["base"]
    evicted = model.kv_bytes("evicted_best_of_n")["base"]
    assert model.eviction_saving == pytest.approx(full / evicted)
    assert eviction_saving(model.length, model.budget, model.window) == model.eviction_saving


@given(models(), methods, counts, counts, st.integers(2, 5))
def test_flops_of_a_problem(
    model: CostModel, method: CostMethod, base: int, helper: int, times: int
) -> None:
    helpers = helper if method == "kv_rescue" else None
    once = model.flops(method, base, helpers)
    often = model.flops(method, times * base, None if helpers is None else times * helpers)
    full = method == "full_best_of_n"
    per_token = model.base.decode_flops(model.length) if full else model.evicted_flops
    assert once["base"] == pytest.approx(base * per_token)
    assert once.keys() == often.keys() == model.weights(method).keys()
    for part in once:
        assert often[part] == pytest.approx(times * once[part])
    if model.verifier is not None:
        read = base + (helpers or 0)
        assert once["verifier"] == read * model.verifier.decode_flops(model.length)


@given(models(), methods, st.floats(0.01, 2000), st.integers(1, 16), st.floats(0, 50))
def test_the_largest_batch_fits_and_one_more_does_not(
    model: CostModel, method: CostMethod, gib: float, gpus: int, reserved: float
) -> None:
    machine = Machine(memory_gib=gib, gpus=gpus, reserved_gib=reserved)
    fit = model.fit(method, machine)
    assert fit.needs(fit.problems + 1) > fit.available
    assert fit.weights_fit == (fit.needs(0) <= fit.available)
    assert fit.needs(fit.problems) <= fit.available or not (fit.weights_fit or fit.problems)
    assert fit.available <= max(0, gpus * (gib - reserved) * GIB)
    weights = {"base": model.base, "helper": model.helper, "verifier": model.verifier}
    for part, size in fit.weights.items():
        assert size == math.ceil(weights[part].parameters * model.weight_bytes)  # type: ignore[union-attr]


@given(models(), methods, st.floats(0.01, 2000), st.floats(0, 100))
def test_more_memory_fits_no_fewer_and_longer_contexts_no_more(
    model: CostModel, method: CostMethod, gib: float, more: float
) -> None:
    def fitting(setting: CostModel, memory: float) -> int:
        return setting.fit(method, Machine(memory_gib=memory)).problems

    assert fitting(model, gib + more) >= fitting(model, gib)
    assert fitting(but(model, length=model.length + 100), gib) <= fitting(model, gib)
    assert fitting(but(model, n=model.n + 1), gib) <= fitting(model, gib)


NUMBERS = ["n", "helper_n", "length", "budget", "kv_element_bytes"]
WRONG = [0, -1, math.nan, math.inf, 2.0, 2.5, "8", True, 10**30]


@pytest.mark.parametrize(
    ("field", "value"),
    [*itertools.product(NUMBERS, WRONG), *(("window", value) for value in WRONG[1:])],
)
def test_wrong_whole_numbers(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{field} = .*expected a whole number"):
        CostModel(base=shape_of("7B"), helper=shape_of("1.5B"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["alpha", "weight_bytes"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "x", None, 10**30])
def test_wrong_numbers(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        CostModel(base=shape_of("7B"), helper=shape_of("1.5B"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "machine",
    [
        {"memory_gib": 0},
        {"memory_gib": math.nan},
        {"memory_gib": math.inf},
        {"memory_gib": -1},
        {"memory_gib": 1, "gpus": 0},
        {"memory_gib": 1, "gpus": 1.0},
        {"memory_gib": 1, "reserved_gib": -1},
        {"memory_gib": 1, "reserved_gib": math.nan},
    ],
)
def test_wrong_machines(machine: dict[str, Any]) -> None:
    field = list(machine)[-1]
    with pytest.raises(ConfigError, match=f"Machine: {field} = "):
        Machine(**machine)


def test_wrong_arguments() -> None:
    model = CostModel(base=shape_of("7B"), helper=shape_of("1.5B"))
    for method in METHODS:
        with pytest.raises(ConfigError, match="base_tokens = 0"):
            model.flops(method, 0)
        with pytest.raises(ConfigError, match=r"problems = 1\.5"):
            model.fit(method, Machine(memory_gib=1)).needs(1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="helper_tokens = None"):
        model.flops("kv_rescue", 1)
    with pytest.raises(ConfigError, match="helper_tokens = 5: full_best_of_n has no helper"):
        model.flops("full_best_of_n", 1, 5)
    with pytest.raises(ConfigError, match="method = 'best': expected one of full_best_of_n"):
        model.kv_bytes("best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"length = 1\.5"):
        model.base.attention_flops(1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="element_bytes = 0"):
        model.base.kv_bytes_per_token(0)
    with pytest.raises(ConfigError, match="crossover = 639: expected a whole number of at least"):
        alpha_from_crossover(639, 512)
    for huge in (10**16, 10**5000):
        with pytest.raises(ConfigError, match=r"is more than 10\^15"):
            eviction_saving(huge, 1)
        with pytest.raises(ConfigError, match=r"is more than 10\^15"):
            model.flops("full_best_of_n", huge)
    for alpha in (math.nan, -1, math.inf, "x", True):
        with pytest.raises(ConfigError, match="alpha = "):
            crossover_length(512, alpha=alpha)  # type: ignore[arg-type]


def test_torch_is_not_needed() -> None:
    code = "import sys, kvrescue.cost; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
