"""What KV-Rescue costs in memory and compute: Appendix D of the paper as code, for any model.

    from kvrescue.cost import CostModel, Machine, shape_of

    cost = CostModel(base=shape_of("72B"), helper=shape_of("1.5B"), budget=64, length=4096)
    print(cost.kv_bytes("kv_rescue"), cost.memory_ratio, cost.helper_fraction)
    print(cost.fit("kv_rescue", Machine(memory_gib=40, gpus=8)).problems)

Equation numbers are the paper's. Two things are added to them. An evicted cache holds min(l, B')
tokens: as long as nothing has been evicted, the paper's constant B' would be too much, and nothing
is spent on eviction. And a verifier (a process reward model), which the equations leave out, can be
counted. Bytes are whole numbers, GiB are 2^30 bytes; a multiplication and an addition are 2 FLOPs.

Every wrong number is a `ConfigError` that names field and value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import Field

from kvrescue.errors import ConfigError
from kvrescue.faults import whole_number
from kvrescue.options import Options
from kvrescue.shapes import KNOWN, MOST, ModelShape, Size, shape_from_config, shape_of

__all__ = [
    "ALPHA",
    "GIB",
    "KNOWN",
    "METHODS",
    "REPORTED_GAIN",
    "CostMethod",
    "CostModel",
    "Fit",
    "Machine",
    "ModelShape",
    "Part",
    "alpha_from_crossover",
    "crossover_length",
    "eviction_saving",
    "shape_from_config",
    "shape_of",
]

GIB: Final = 2**30
"""Bytes."""

CostMethod: TypeAlias = Literal["full_best_of_n", "evicted_best_of_n", "kv_rescue"]
"""What is compared."""
METHODS: Final[tuple[CostMethod, ...]] = get_args(CostMethod)
"""All of them."""

Part: TypeAlias = Literal["base", "helper", "verifier"]
"""Who needs memory or compute."""

Positive = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)]

ALPHA: Final = 2.9
"""What the paper finds for R-KV on its hardware (Eq. 14)."""

REPORTED_GAIN: Final[Mapping[int, float]] = {4096: 0.02, 12288: 0.06}
"""What the paper says that eviction saves of a token's compute, by tokens of context. Reported, not
derivable: its equations give more, for either of its bases (see `CostModel.evicted_gain`)."""


def eviction_saving(length: int, budget: int, window: int = 128) -> float:
    """l / B': how many times fewer tokens an evicted cache holds (Eq. 10); 1 up to l = B'."""
    bound = _bound(budget, window)
    return max(1.0, _whole("length", length, 1) / bound)


def crossover_length(budget: int, window: int = 128, alpha: float = ALPHA) -> float:
    """l* = (1 + alpha) B': tokens of context beyond which evicted decoding is cheaper (Eq. 14)."""
    if not (isinstance(alpha, int | float) and 0 <= alpha <= 10**6) or isinstance(alpha, bool):
        raise ConfigError(f"alpha = {alpha!r}: expected a number from 0 to 1e+06")
    return (1 + alpha) * _bound(budget, window)


def alpha_from_crossover(crossover: int, budget: int, window: int = 128) -> float:
    """alpha = l* / B' - 1: the cost of eviction, in attention passes over the bounded cache, that
    a measured crossover means (Eq. 14).

    Raises:
        ConfigError: the crossover is below B', where nothing is evicted.
    """
    bound = _bound(budget, window)
    return _whole("crossover", crossover, bound) / bound - 1


def _bound(budget: int, window: int) -> int:
    """B' = B + w."""
    return _whole("budget", budget, 1) + _whole("window", window, 0)


def _whole(name: str, value: object, least: int) -> int:
    """A count from `least` to 10^15, so that products of some are still floats."""
    number = whole_number(name, value, least)
    if number > MOST:
        raise ConfigError(f"{name} is more than 10^15: expected a whole number of at most that")
    return number


class Machine(Options):
    """What there is of GPU memory."""

    memory_gib: Positive
    """Of one GPU."""
    gpus: Annotated[int, Field(strict=True, ge=1, le=10**6)] = 1
    """Models and caches are taken to spread evenly over them (tensor parallelism)."""
    reserved_gib: NotNegative = 0.0
    """On every GPU, for all that is neither weights nor KV cache: activations, CUDA, fragments."""

    @property
    def bytes(self) -> int:
        """For weights and caches, over all GPUs; 0 when everything is reserved."""
        return max(0, self.gpus * math.floor((self.memory_gib - self.reserved_gib) * GIB))


@dataclass(frozen=True, slots=True)
class Fit:
    """How many problems fit into a machine's memory at once, and what takes it. All in bytes."""

    method: CostMethod
    """Of what."""
    available: int
    """Bytes of the machine, less what is reserved."""
    weights: Mapping[Part, int]
    """Bytes, by part."""
    kv_per_problem: Mapping[Part, int]
    """Bytes, by part."""

    def needs(self, problems: int) -> int:
        """Bytes of the weights and of the caches of so many problems."""
        problems = whole_number("problems", problems, 0)
        return sum(self.weights.values()) + problems * sum(self.kv_per_problem.values())

    @property
    def weights_fit(self) -> bool:
        """Whether there is room before the first problem."""
        return self.needs(0) <= self.available

    @property
    def problems(self) -> int:
        """The largest number that fits; 0 when not even one does."""
        left = self.available - self.needs(0)
        return max(0, left // sum(self.kv_per_problem.values()))


class CostModel(Options):
    """One setting of models, candidates, context and budget, and what each method costs in it.

    The methods: `full_best_of_n` (the base with its full cache), `evicted_best_of_n` (the evicted
    base), `kv_rescue` (the evicted base and the full-context helper).
    """

    base: ModelShape
    """The evicted model."""
    helper: ModelShape
    """The full-context helper."""
    verifier: ModelShape | None = None
    """The process reward model; None leaves it out, as the paper's equations do."""
    n: Size = 8
    """N: candidates of the base in every step, each counted as a sequence of its own."""
    helper_n: Size | None = None
    """Candidates of the helper; None means N, as in the paper."""
    length: Size = 4096
    """l: tokens of context, prompt included."""
    budget: Size = 512
    """B: entries that the evictor selects."""
    window: Annotated[int, Field(strict=True, ge=0, le=MOST)] = 128
    """w: most recent entries, always kept."""
    alpha: NotNegative = ALPHA
    """What evicting costs per token, in attention passes over B' tokens; the paper: 1.5 to 3."""
    kv_element_bytes: Annotated[int, Field(strict=True, ge=1, le=16)] = 2
    """b: bytes of one number in the caches; 2 for bfloat16."""
    weight_bytes: Annotated[float, Field(gt=0, le=16, allow_inf_nan=False)] = 2.0
    """Bytes of one parameter; 0.5 for 4-bit weights."""

    # -- memory -------------------------------------------------------------------------------

    @property
    def bound(self) -> int:
        """B' = B + w: entries that the evicted cache holds at most."""
        return self.budget + self.window

    @property
    def helpers(self) -> int:
        """N_h: candidates of the helper in every step."""
        return self.n if self.helper_n is None else self.helper_n

    @property
    def held(self) -> int:
        """min(l, B'): entries that the evicted cache holds."""
        return min(self.length, self.bound)

    def kv_bytes(self, method: CostMethod) -> dict[Part, int]:
        """KV cache of one problem, in bytes, by model (Eqs. 9 and 11).

        Full best-of-N: N m_base l. Evicted: N m_base B'. KV-Rescue: N m_base B' + N_h m_help l.
        A verifier adds m_ver l in all of them: it keeps the shared trajectory once.
        """
        _check(method)
        held = self.length if method == "full_best_of_n" else self.held
        parts: dict[Part, int] = {"base": self.n * self._per_token(self.base) * held}
        if method == "kv_rescue":
            parts["helper"] = self.helpers * self._per_token(self.helper) * self.length
        if self.verifier is not None:
            parts["verifier"] = self._per_token(self.verifier) * self.length
        return parts

    @property
    def memory_ratio(self) -> float:
        """Full best-of-N's KV memory over KV-Rescue's (after Eq. 11); above 1, KV-Rescue saves."""
        full, rescue = (self.kv_bytes(m) for m in ("full_best_of_n", "kv_rescue"))
        return sum(full.values()) / sum(rescue.values())

    @property
    def eviction_saving(self) -> float:
        """l / B' (Eq. 10)."""
        return eviction_saving(self.length, self.budget, self.window)

    @property
    def memory_crossover(self) -> int | None:
        """The shortest context, in tokens, at which KV-Rescue needs no more KV memory than full
        best-of-N (from Eq. 11); None when the helper's cache grows as fast as the base's."""
        base = self.n * self._per_token(self.base)
        gained = base - self.helpers * self._per_token(self.helper)
        return None if gained <= 0 else -(-base * self.bound // gained)

    def _per_token(self, model: ModelShape) -> int:
        return model.kv_bytes_per_token(self.kv_element_bytes)

    # -- compute ------------------------------------------------------------------------------

    @property
    def evicted_flops(self) -> float:
        """C_evict = 2 P + (1 + alpha) 4 L d B': FLOPs of one token of the evicted base (Eq. 13).

        Up to l = B' nothing is evicted, and it is C(l).
        """
        if self.length <= self.bound:
            return self.base.decode_flops(self.length)
        attention = (1 + self.alpha) * self.base.attention_flops(self.bound)
        return self.base.dense_flops + attention

    @property
    def compute_crossover(self) -> float:
        """l* = (1 + alpha) B', in tokens (Eq. 14)."""
        return crossover_length(self.budget, self.window, self.alpha)

    @property
    def evicted_gain(self) -> float:
        """1 - C_evict / C(l): the part of a token's FLOPs that eviction saves (Eqs. 12 and 13).

        Negative between B' and l*. What the paper states is another thing: `REPORTED_GAIN`.
        """
        return 1 - self.evicted_flops / self.base.decode_flops(self.length)

    @property
    def helper_fraction(self) -> float:
        """rho = C_help(l) / C_evict: FLOPs of a helper's token over an evicted base's (Eq. 15)."""
        return self.helper.decode_flops(self.length) / self.evicted_flops

    def flops(
        self, method: CostMethod, base_tokens: int, helper_tokens: int | None = None
    ) -> dict[Part, float]:
        """FLOPs that generating one problem's tokens takes, by model.

        Every token is charged as one at context `length`; attention being linear, the mean context
        of a generation as `length` gives its mean cost. A verifier reads every token once. Left out
        is what is read and not generated: the prompt, and the other model's committed steps.

        Args:
            method: which method.
            base_tokens: generated by the base for one problem, all candidates together.
            helper_tokens: the same of the helper; for `kv_rescue` and nothing else.

        Raises:
            ConfigError: a count is missing, too much, or no positive whole number.
        """
        _check(method)
        tokens = _whole("base_tokens", base_tokens, 1)
        full = method == "full_best_of_n"
        per_token = self.base.decode_flops(self.length) if full else self.evicted_flops
        parts: dict[Part, float] = {"base": tokens * per_token}
        if method == "kv_rescue":
            written = _whole("helper_tokens", helper_tokens, 1)
            parts["helper"] = written * self.helper.decode_flops(self.length)
            tokens += written
        elif helper_tokens is not None:
            raise ConfigError(f"helper_tokens = {helper_tokens!r}: {method} has no helper")
        if self.verifier is not None:
            parts["verifier"] = tokens * self.verifier.decode_flops(self.length)
        return parts

    # -- both ---------------------------------------------------------------------------------

    def weights(self, method: CostMethod) -> dict[Part, int]:
        """Bytes of the weights that a method loads, by model."""
        _check(method)
        models: dict[Part, ModelShape | None] = {
            "base": self.base,
            "helper": self.helper if method == "kv_rescue" else None,
            "verifier": self.verifier,
        }
        return {
            part: math.ceil(model.parameters * self.weight_bytes)
            for part, model in models.items()
            if model is not None
        }

    def fit(self, method: CostMethod, machine: Machine) -> Fit:
        """How many problems at context `length` fit into a machine's memory at once."""
        return Fit(method, machine.bytes, self.weights(method), self.kv_bytes(method))


def _check(method: str) -> None:
    if method not in METHODS:
        raise ConfigError(f"method = {method!r}: expected one of {', '.join(METHODS)}")
