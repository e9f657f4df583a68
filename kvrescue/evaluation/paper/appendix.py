"""What the paper says of costs, computed again by the equations of its Appendix D from Table 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvrescue.cost import (
    GIB,
    METHODS,
    REPORTED_GAIN,
    CostModel,
    Machine,
    alpha_from_crossover,
    shape_of,
)
from kvrescue.evaluation.paper.claims import Claim

__all__ = ["appendix_claims"]

_SOURCE: Final = "Appendix D; Table 4"
_EXAMPLE: Final = "N = 8, 4096 tokens, budget 512"


def appendix_claims() -> tuple[Claim, ...]:
    """The stated values of Appendix D and of the text about efficiency, in their order."""
    return (
        *_caches(),
        *_memory(),
        *_sequences(),
        *_compute(),
        *_crossover(),
        *_helper(),
        *_gains(),
        *_batches(),
    )


def _cost(base: str, length: int = 4096) -> CostModel:
    """The paper's example: budget 512 + window 128, N = 8, bfloat16, alpha 2.9."""
    return CostModel(base=shape_of(base), helper=shape_of("1.5B"), length=length)


def _claim(
    name: str,
    text: str,
    stated: float,
    value: float,
    unit: str = "",
    decimals: int = 0,
    note: str = "",
) -> Claim:
    return Claim(
        name,
        text,
        _SOURCE,
        stated=stated,
        recomputed=value,
        about="costs",
        unit=unit,
        decimals=decimals,
        note=note,
    )


def _caches() -> Sequence[Claim]:
    return [
        _claim(
            f"kv_per_token_{model}",
            f"KV cache of one token, {model} (Eq. 8)",
            stated,
            shape_of(model).kv_bytes_per_token() / 1024,
            "KiB",
        )
        for model, stated in (("7B", 56), ("72B", 320), ("1.5B", 28))
    ]


def _memory() -> Sequence[Claim]:
    claims = [
        _claim(
            "eviction_saving",
            "full over evicted cache, 8192 tokens, budget 512 (Eq. 10)",
            12.8,
            _cost("7B", 8192).eviction_saving,
            "x",
            1,
        )
    ]
    for base, full, digits, rescue, ratio in (
        ("7B", 1.75, 2, 1.15, 1.5),
        ("72B", 10.0, 1, 2.44, 4.1),
    ):
        cost = _cost(base)
        gib = {method: sum(cost.kv_bytes(method).values()) / GIB for method in METHODS}
        where = f"{base}, {_EXAMPLE} (Eq. 11)"
        claims += [
            _claim(
                f"full_memory_{base}",
                f"KV cache of full best-of-N, {where}",
                full,
                gib["full_best_of_n"],
                "GiB",
                digits,
            ),
            _claim(
                f"rescue_memory_{base}",
                f"KV cache of KV-Rescue, {where}",
                rescue,
                gib["kv_rescue"],
                "GiB",
                2,
            ),
            _claim(
                f"memory_ratio_{base}",
                f"full best-of-N over KV-Rescue, {where}",
                ratio,
                cost.memory_ratio,
                "x",
                1,
            ),
        ]
    return claims


def _sequences() -> Sequence[Claim]:
    cost = _cost("72B").model_copy(update={"n": 1})
    full, rescue = (
        sum(cost.kv_bytes(method).values()) / GIB for method in (METHODS[0], METHODS[2])
    )
    where = "72B, 4096 tokens, budget 512"
    return (
        _claim(
            "sequence_full_72B", f"KV cache of one full sequence, {where}", 1.25, full, "GiB", 2
        ),
        _claim(
            "sequence_rescue_72B",
            f"KV cache of one sequence of KV-Rescue, {where}",
            0.31,
            rescue,
            "GiB",
            2,
            note=f"{rescue:.4f} for base and helper: 0.31 only when rounded twice.",
        ),
    )


def _compute() -> Sequence[Claim]:
    claims = []
    for base, dense, attention, digits, share in (
        ("7B", 15.2, 0.401, 3, 11),
        ("72B", 145.4, 2.62, 2, 7),
    ):
        model = shape_of(base)
        attended = 100 * model.attention_flops(4096)
        claims += [
            _claim(
                f"dense_{base}",
                f"linear layers for one token, {base} (Eq. 12)",
                dense,
                model.dense_flops / 1e9,
                "GFLOP",
                1,
            ),
            _claim(
                f"attention_{base}",
                f"attention to one cached token, {base} (Eq. 12)",
                attention,
                model.attention_flops(1) / 1e6,
                "MFLOP",
                digits,
            ),
            _claim(
                f"attention_share_{base}",
                f"attention's part of a forward, {base}, 4096 tokens (Eq. 12)",
                share,
                attended / model.decode_flops(4096),
                "%",
                note=f"{attended / model.dense_flops:.1f} % of the linear layers alone.",
            ),
        ]
    return claims


def _crossover() -> Sequence[Claim]:
    return (
        _claim(
            "alpha",
            "cost of evicting, in attention passes, from a measured crossover of 2500 tokens "
            "(Eq. 14)",
            2.9,
            alpha_from_crossover(2500, budget=512),
            decimals=1,
        ),
        _claim(
            "crossover",
            "tokens from which evicted decoding is cheaper, to the hundred, alpha 2.9 (Eq. 14)",
            2500,
            _cost("7B").compute_crossover,
            decimals=-2,
        ),
    )


def _helper() -> Sequence[Claim]:
    small, large = _cost("7B"), _cost("72B")
    least = small.model_copy(update={"alpha": 1.5}).helper_fraction
    where = "4096 tokens, alpha 2.9 (Eq. 15)"
    return (
        _claim(
            "helper_fraction_7B",
            f"a helper's token over a token of the evicted 7B, {where}",
            24,
            100 * small.helper_fraction,
            "%",
            note=f"{100 * least:.1f} % with alpha 1.5, the least that the paper considers.",
        ),
        _claim(
            "helper_fraction_72B",
            f"a helper's token over a token of the evicted 72B, {where}",
            2.5,
            100 * large.helper_fraction,
            "%",
            1,
        ),
    )


def _gains() -> Sequence[Claim]:
    return [
        _claim(
            f"evicted_gain_{length}",
            f"compute that evicting saves on one token, 7B, {length} tokens, alpha 2.9 "
            "(Eqs. 12 and 13)",
            100 * stated,
            100 * _cost("7B", length).evicted_gain,
            "%",
            note="Reported, not derivable: the equations give this, and "
            f"{100 * _cost('72B', length).evicted_gain:.1f} % for the 72B.",
        )
        for length, stated in REPORTED_GAIN.items()
    ]


def _batches() -> Sequence[Claim]:
    """Table 3: which of its runs fit into memory."""
    cost = _cost("72B").model_copy(update={"budget": 64, "verifier": shape_of("prm-7B")})
    machine = Machine(memory_gib=40, gpus=8)
    where = "72B, N = 8, budget 64, 4096 tokens, 8 x 40 GiB"
    return (
        Claim(
            "full_batch_72B",
            f"problems of full best-of-N that fit: not the 64 that ran out of memory ({where})",
            "Table 3; Eq. 11",
            about="costs",
            stated=64,
            relation="<",
            recomputed=cost.fit("full_best_of_n", machine).problems,
        ),
        Claim(
            "rescue_batch_72B",
            f"problems of KV-Rescue that fit: the 64 that ran ({where})",
            "Table 3; Eq. 11",
            about="costs",
            stated=64,
            relation=">=",
            recomputed=cost.fit("kv_rescue", machine).problems,
        ),
    )
