"""`kvrescue cost`: what the methods cost in memory and compute, for given models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvrescue.cli.console import emit_json, human
from kvrescue.cli.options import Json
from kvrescue.cost import (
    ALPHA,
    METHODS,
    REPORTED_GAIN,
    CostMethod,
    CostModel,
    Fit,
    Machine,
    alpha_from_crossover,
    shape_of,
)
from kvrescue.errors import ConfigError

__all__ = ["cost"]

_MODEL = "7B, 72B, 1.5B (Table 4), prm-7B, smollm2, tiny/..., a folder or a config.json"


def cost(
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="MODEL",
            help=f"The evicted model (default: 7B): {_MODEL}.",
            show_default=False,
        ),
    ] = "7B",
    helper: Annotated[
        str,
        typer.Option(
            "--helper",
            metavar="MODEL",
            help="The full-context helper (default: 1.5B).",
            show_default=False,
        ),
    ] = "1.5B",
    verifier: Annotated[
        str | None,
        typer.Option(
            "--verifier",
            metavar="MODEL",
            help="Count a process reward model, too, prm-7B for example (default: none, as in the "
            "paper's equations).",
        ),
    ] = None,
    n: Annotated[
        int,
        typer.Option(
            "--n",
            "-n",
            metavar="N",
            help="Candidates of the base in every step (default: 8).",
            show_default=False,
        ),
    ] = 8,
    helper_n: Annotated[
        int | None,
        typer.Option("--helper-n", metavar="N", help="Candidates of the helper (default: N)."),
    ] = None,
    length: Annotated[
        int,
        typer.Option(
            "--length",
            metavar="TOKENS",
            help="Context, prompt included (default: 4096).",
            show_default=False,
        ),
    ] = 4096,
    budget: Annotated[
        int,
        typer.Option(
            "--budget",
            metavar="B",
            help="Entries that the evictor selects (default: 512).",
            show_default=False,
        ),
    ] = 512,
    window: Annotated[
        int,
        typer.Option(
            "--window",
            metavar="W",
            help="Most recent entries, kept on top (default: 128).",
            show_default=False,
        ),
    ] = 128,
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha",
            metavar="A",
            help="What evicting costs per token, in attention passes over B + W entries "
            f"(default: {ALPHA}).",
        ),
    ] = None,
    crossover: Annotated[
        int | None,
        typer.Option(
            "--crossover",
            metavar="TOKENS",
            help="Instead of --alpha: the context from which evicted decoding was measured to be "
            "cheaper.",
        ),
    ] = None,
    kv_element_bytes: Annotated[
        int,
        typer.Option(
            "--kv-element-bytes",
            metavar="BYTES",
            help="Of one number in the caches (default: 2, bfloat16).",
            show_default=False,
        ),
    ] = 2,
    weight_bytes: Annotated[
        float,
        typer.Option(
            "--weight-bytes",
            metavar="BYTES",
            help="Of one parameter (default: 2); 0.5 for 4 bits.",
            show_default=False,
        ),
    ] = 2.0,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="DATASET|FULL,EVICTED,BASE,HELPER",
            help="Compute per problem, too, for so many generated tokens: those of full best-of-N, "
            "of evicted best-of-N, and of KV-Rescue's base and helper; or those that the paper "
            "measured with 7B and N = 8, MATH500 for example.",
        ),
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(
            "--memory-gib", metavar="GIB", help="Show what fits into a GPU of this size, too."
        ),
    ] = None,
    gpus: Annotated[
        int,
        typer.Option(
            "--gpus", metavar="G", help="How many such GPUs (default: 1).", show_default=False
        ),
    ] = 1,
    reserved_gib: Annotated[
        float,
        typer.Option(
            "--reserved-gib",
            metavar="GIB",
            help="Kept free on every GPU for all that is neither weights nor caches (default: 0).",
            show_default=False,
        ),
    ] = 0.0,
    json: Json = False,
) -> None:
    """Compute memory, compute and the largest batch of best-of-N and KV-Rescue.

    Nothing is loaded or measured: these are the equations of the paper's Appendix D.
    They hold for decoders of the Llama, Mistral, Qwen2 and Qwen3 families; see docs/cost.md.
    """
    if alpha is not None and crossover is not None:
        raise typer.BadParameter("give either --alpha or --crossover, not both")
    if crossover is not None:
        alpha = alpha_from_crossover(crossover, budget, window)
    model = CostModel(
        base=shape_of(base),
        helper=shape_of(helper),
        verifier=None if verifier is None else shape_of(verifier),
        n=n,
        helper_n=helper_n,
        length=length,
        budget=budget,
        window=window,
        alpha=ALPHA if alpha is None else alpha,
        kv_element_bytes=kv_element_bytes,
        weight_bytes=weight_bytes,
    )
    counts = None if tokens is None else _counts(tokens, budget)
    fits = None
    if memory_gib is not None:
        machine = Machine(memory_gib=memory_gib, gpus=gpus, reserved_gib=reserved_gib)
        fits = {method: model.fit(method, machine) for method in METHODS}
    elif (gpus, reserved_gib) != (1, 0.0):
        raise typer.BadParameter("--gpus and --reserved-gib need --memory-gib")
    if json:
        emit_json(_data(model, counts, fits))
    else:
        from kvrescue.cli.cost_view import show_cost

        show_cost(human(), model, counts, fits)


_DIGITS, _SHOWN = 15, 80
_COUNTED = ("full", "evicted", "base", "helper")


def _counts(tokens: str, budget: int) -> dict[CostMethod, tuple[int, int | None]]:
    """Tokens of base and helper, by method."""
    if "," not in tokens:
        return _papers_counts(tokens, budget)
    parts = tokens.split(",")
    numbers = [int(p) for p in parts if p.strip().isdecimal() and len(p) <= _DIGITS]
    if len(parts) != len(_COUNTED) or len(numbers) != len(parts) or not all(numbers):
        raise ConfigError(
            f"tokens = {tokens[:_SHOWN]!r}: expected four whole numbers of at least 1, "
            f"{','.join(_COUNTED)}, or a data set"
        )
    full, evicted, base, helper = numbers
    return {
        "full_best_of_n": (full, None),
        "evicted_best_of_n": (evicted, None),
        "kv_rescue": (base, helper),
    }


def _papers_counts(name: str, budget: int) -> dict[CostMethod, tuple[int, int | None]]:
    """Those of the paper's Table 1."""
    from kvrescue.evaluation.paper import BUDGETS, dataset_named, decode_costs

    dataset = dataset_named(name)
    if budget not in BUDGETS:
        raise ConfigError(
            f"tokens = {name!r}: the paper has counts for the budgets "
            f"{', '.join(map(str, BUDGETS))}, not {budget}; give four numbers instead"
        )
    rows = {
        row.method: (row.base_tokens, row.helper_tokens)
        for row in decode_costs()
        if row.dataset == dataset and row.budget in (None, budget)
    }
    return {
        "full_best_of_n": rows["full_kv"],
        "evicted_best_of_n": rows["best_of_n"],
        "kv_rescue": rows["kv_rescue"],
    }


def _data(
    model: CostModel,
    counts: dict[CostMethod, tuple[int, int | None]] | None,
    fits: dict[CostMethod, Fit] | None,
) -> dict[str, Any]:
    """Everything as JSON; bytes, FLOPs and tokens are plain numbers."""
    parts = {"base": model.base, "helper": model.helper, "verifier": model.verifier}
    setting = model.model_dump(exclude=set(parts))
    return {
        "models": {
            part: shape.model_dump()
            | {"kv_bytes_per_token": shape.kv_bytes_per_token(model.kv_element_bytes)}
            for part, shape in parts.items()
            if shape is not None
        },
        "setting": setting | {"helper_n": model.helpers, "bound": model.bound},
        "memory": {
            "kv_bytes": {method: model.kv_bytes(method) for method in METHODS},
            "ratio": model.memory_ratio,
            "eviction_saving": model.eviction_saving,
            "crossover": model.memory_crossover,
        },
        "compute": {
            "full_flops": model.base.decode_flops(model.length),
            "evicted_flops": model.evicted_flops,
            "helper_flops": model.helper.decode_flops(model.length),
            "helper_fraction": model.helper_fraction,
            "evicted_gain": model.evicted_gain,
            "crossover": model.compute_crossover,
        },
        "reported_not_derivable": {
            "evicted_gain": [
                {"length": tokens, "gain": gain} for tokens, gain in REPORTED_GAIN.items()
            ]
        },
        "problem": None
        if counts is None
        else {
            method: {
                "base_tokens": base,
                "helper_tokens": helper,
                "flops": model.flops(method, base, helper),
            }
            for method, (base, helper) in counts.items()
        },
        "fit": None
        if fits is None
        else {
            method: {
                "problems": fit.problems,
                "available_bytes": fit.available,
                "weights_bytes": fit.weights,
                "kv_bytes_per_problem": fit.kv_per_problem,
            }
            for method, fit in fits.items()
        },
    }
