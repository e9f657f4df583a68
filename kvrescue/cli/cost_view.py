"""Costs for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvrescue.cli.console import counted
from kvrescue.cost import METHODS, REPORTED_GAIN, CostMethod, CostModel, Fit, ModelShape, Part

__all__ = ["show_cost"]

_BYTES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_FLOPS: Final = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")


def show_cost(
    console: Console,
    model: CostModel,
    counts: Mapping[CostMethod, tuple[int, int | None]] | None,
    fits: Mapping[CostMethod, Fit] | None,
) -> None:
    """Print the tables, each with what it means below."""
    _show(console, _models(model))
    console.print()
    _show(console, _memory(model))
    _note(console, _memory_note(model))
    console.print()
    _show(console, _compute(model))
    _note(console, _compute_note(model))
    if counts is not None:
        console.print()
        _show(console, _problem(model, counts))
        _note(
            console,
            f"Every token is charged as one that sees {_tokens(model.length)}. Left out: "
            "reading the prompt and the other model's steps.",
        )
    if fits is not None:
        console.print()
        _show(console, _fit(fits))
        for method, fit in fits.items():
            _note(console, f"{_titles(model)[method]}: {_fit_note(fit)}")


def _titles(model: CostModel) -> dict[CostMethod, str]:
    return {
        "full_best_of_n": f"full KV, best of {model.n}",
        "evicted_best_of_n": f"evicted, best of {model.n}",
        "kv_rescue": f"KV-Rescue, {model.n} + {model.helpers}",
    }


def _parts(model: CostModel) -> dict[Part, ModelShape]:
    parts: dict[Part, ModelShape | None] = {
        "base": model.base,
        "helper": model.helper,
        "verifier": model.verifier,
    }
    return {part: shape for part, shape in parts.items() if shape is not None}


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _show(console: Console, table: Table) -> None:
    """The title on a line of its own: above a narrow table rich would break it."""
    console.print(Text(str(table.title), style="bold"))
    table.title = None
    console.print(table)


def _note(console: Console, text: str) -> None:
    console.print(Text(text, style="dim"))


def _models(model: CostModel) -> Table:
    table = _table("Models", "part", "model", "parameters", "weights", "KV cache of a token")
    for part, shape in _parts(model).items():
        table.add_row(
            part,
            Text(shape.name),
            _count(shape.parameters),
            _bytes(shape.parameters * model.weight_bytes),
            _bytes(shape.kv_bytes_per_token(model.kv_element_bytes)),
        )
    return table


def _memory(model: CostModel) -> Table:
    parts = _parts(model)
    table = _table(
        f"KV cache of one problem, {_tokens(model.length)} of context, "
        f"budget {_count(model.budget)} + window {_count(model.window)}",
        "method", *parts, "together", "vs full KV",
    )  # fmt: skip
    full = sum(model.kv_bytes("full_best_of_n").values())
    for method, title in _titles(model).items():
        found = model.kv_bytes(method)
        whole = sum(found.values())
        cells = (_bytes(found[part]) if part in found else "-" for part in parts)
        table.add_row(title, *cells, _bytes(whole), _times(full, whole), style=_style(method))
    return table


def _memory_note(model: CostModel) -> str:
    note = (
        f"Evicted, a sequence of the base holds {_count(model.held)} of "
        f"{_tokens(model.length)}, {model.eviction_saving:.1f} times fewer (Eq. 10). "
    )
    if model.memory_crossover is None:
        return note + "KV-Rescue always needs more than full KV: the helper's cache is no smaller."
    return note + (
        f"KV-Rescue needs no more than full KV from {_tokens(model.memory_crossover)} of "
        "context on (Eq. 11)."
    )


def _compute(model: CostModel) -> Table:
    table = _table(
        f"Compute of one generated token at {_tokens(model.length)} of context",
        "model", "linear layers", "attention", "eviction", "together", "vs full KV",
    )  # fmt: skip
    base, helper, length = model.base, model.helper, model.length
    full = base.decode_flops(length)
    attention = base.attention_flops(model.held)
    rows: dict[str, tuple[float, float, float | None]] = {
        "base, full KV": (base.dense_flops, base.attention_flops(length), None),
        "base, evicted": (
            base.dense_flops,
            attention,
            model.evicted_flops - base.dense_flops - attention,
        ),
        "helper": (helper.dense_flops, helper.attention_flops(length), None),
    }
    if model.verifier is not None:
        verifier = model.verifier
        rows["verifier"] = (verifier.dense_flops, verifier.attention_flops(length), None)
    for title, (dense, attended, evicting) in rows.items():
        whole = dense + attended + (evicting or 0)
        table.add_row(
            title,
            _flops(dense),
            _flops(attended),
            "-" if evicting is None else _flops(evicting),
            _flops(whole),
            f"{100 * whole / full:.1f} %",
        )
    return table


def _compute_note(model: CostModel) -> str:
    note = (
        f"A token of the helper costs {100 * model.helper_fraction:.1f} % of one of the evicted "
        f"base (rho, Eq. 15). Evicting is cheaper per token from "
        f"{_tokens(round(model.compute_crossover))} on (Eq. 14, alpha = {model.alpha:.3g}); "
        f"here {_gain(model)}."
    )
    if model.base.name not in ("7B", "72B"):
        return note
    reported = " and ".join(
        f"{100 * gain:.0f} % at {_count(length)}" for length, gain in REPORTED_GAIN.items()
    )
    return (
        f"{note} The paper says {reported} with budget 512: reported, not derivable from its "
        "equations."
    )


def _gain(model: CostModel) -> str:
    if model.length <= model.bound:
        return "nothing is evicted yet"
    word = "saves" if model.evicted_gain >= 0 else "costs"
    return f"it {word} {abs(100 * model.evicted_gain):.1f} %"


def _problem(model: CostModel, counts: Mapping[CostMethod, tuple[int, int | None]]) -> Table:
    parts = _parts(model)
    table = _table(
        "Compute of one problem",
        "method", "base tokens", "helper tokens", *parts, "together", "vs full KV",
    )  # fmt: skip
    full = sum(model.flops("full_best_of_n", counts["full_best_of_n"][0]).values())
    for method, title in _titles(model).items():
        base, helper = counts[method]
        found = model.flops(method, base, helper)
        whole = sum(found.values())
        table.add_row(
            title,
            _count(base),
            "-" if helper is None else _count(helper),
            *(_flops(found[part]) if part in found else "-" for part in parts),
            _flops(whole),
            _times(full, whole),
            style=_style(method),
        )
    return table


def _fit(fits: Mapping[CostMethod, Fit]) -> Table:
    titles = {
        "full_best_of_n": "full KV",
        "evicted_best_of_n": "evicted",
        "kv_rescue": "KV-Rescue",
    }
    available = next(iter(fits.values())).available
    table = _table(
        f"What fits into {_bytes(available)}",
        "method", "weights", "KV cache of a problem", "largest batch", "taken", "left",
    )  # fmt: skip
    for method in METHODS:
        fit = fits[method]
        fitting = fit.weights_fit
        taken = fit.needs(fit.problems)
        table.add_row(
            titles[method],
            _bytes(sum(fit.weights.values())),
            _bytes(sum(fit.kv_per_problem.values())),
            _count(fit.problems),
            _bytes(taken) if fitting else "-",
            _bytes(fit.available - taken) if fitting else "-",
            style=_style(method),
        )
    return table


def _fit_note(fit: Fit) -> str:
    weights = f"weights {_listed(fit.weights)}"
    if not fit.weights_fit:
        return f"{weights} do not fit; use more GPUs or smaller weights (--weight-bytes)."
    caches = f"KV cache of a problem {_listed(fit.kv_per_problem)}"
    if fit.problems == 0:
        left = _bytes(fit.available - fit.needs(0))
        return f"{weights} leave {left}, and one problem does not fit: {caches}."
    share = 100 * fit.needs(0) / fit.available
    return f"{weights} take {share:.0f} %; {caches}."


def _listed(parts: Mapping[Part, int]) -> str:
    return " + ".join(f"{_bytes(size)} ({part})" for part, size in parts.items())


def _style(method: CostMethod) -> str:
    return "bold" if method == "kv_rescue" else ""


def _times(full: float, other: float) -> str:
    if full == other:
        return "as much"
    return f"{full / other:.3g}x less" if other < full else f"{other / full:.3g}x more"


def _count(number: int) -> str:
    return f"{number:,}"


def _tokens(number: int) -> str:
    return counted(number, "token")


def _bytes(size: float) -> str:
    return _scaled(size, _BYTES, 1024)


def _flops(count: float) -> str:
    return _scaled(count, _FLOPS, 1000)


def _scaled(number: float, units: tuple[str, ...], step: int) -> str:
    """Three digits, with the unit that needs fewest."""
    place = 0
    while abs(number) >= step and place < len(units) - 1:
        number /= step
        place += 1
    digits = 0 if place == 0 or abs(number) >= 100 else 1 if abs(number) >= 10 else 2
    return f"{number:,.{digits}f} {units[place]}"
