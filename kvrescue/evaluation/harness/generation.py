"""generation_kwargs: what a task asks of a generation, in this library's terms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from kvrescue.config import RescueConfig
from kvrescue.errors import ConfigError
from kvrescue.evaluation.harness.arguments import SamplingFrom
from kvrescue.options import Options
from kvrescue.rules import Limits
from kvrescue.sampling import Sampling

__all__ = ["GenerationKwargs", "cut"]

_LENGTHS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of one and the same; of several, lm_eval takes the first in this order."""
_SAMPLING: Final = ("do_sample", "temperature", "top_p", "top_k")


class GenerationKwargs(Options):
    """A task's `generation_kwargs`, after `--gen_kwargs`. None: the task does not say."""

    until: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Stop strings."""
    max_gen_toks: int | None = Field(default=None, ge=1)
    """Tokens of the whole solution."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    do_sample: bool | None = None
    temperature: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=0)
    num_beams: Literal[1] | None = None
    """There is no beam search; some tasks say so themselves."""

    @field_validator("until", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    @property
    def lengths(self) -> dict[str, int]:
        """Every limit on the tokens that is given, the one that counts first."""
        given = {name: getattr(self, name) for name in _LENGTHS}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def sampling(self) -> dict[str, object]:
        """What is said of sampling."""
        given = {name: getattr(self, name) for name in _SAMPLING}
        return {name: value for name, value in given.items() if value is not None}

    def applied(self, config: RescueConfig, origin: SamplingFrom) -> tuple[Sampling, Limits]:
        """How the composition solves problems of this task; what is not said stays as configured.

        Raises:
            ConfigError: the task asks for what a stepwise composition cannot do in a useful way.
        """
        limits = config.limits
        for tokens in list(self.lengths.values())[:1]:
            limits = limits.model_copy(update={"max_output_tokens": tokens})
        sampling = config.sampling if origin == "config" else self._sampled(config)
        for stop in self.until:
            if stop in sampling.separator and limits.max_steps > 1:
                raise ConfigError(
                    f"generation_kwargs.until has {stop!r}, which every step ends with (separator "
                    f"{sampling.separator!r}): all answers would end with their first step. Give "
                    "--gen_kwargs until=... with what follows an answer, or set=limits.max_steps=1 "
                    "if one step is what the task wants"
                )
        return sampling, limits

    def _sampled(self, config: RescueConfig) -> Sampling:
        chosen = {name: value for name, value in self.sampling.items() if name != "do_sample"}
        temperature = self.temperature
        if self.do_sample is False:
            if temperature:
                raise ConfigError(
                    f"generation_kwargs: do_sample = False with temperature = {temperature:g}: "
                    "give do_sample=True, too, or temperature=0; or keep the configuration's "
                    "sampling with the model argument sampling=config"
                )
            temperature = chosen["temperature"] = 0.0
        elif self.do_sample:
            warm = config.sampling.temperature if temperature is None else temperature
            if not warm:
                raise ConfigError(
                    "generation_kwargs: do_sample = True with temperature = 0: give a "
                    "temperature, too"
                )
        several = [name for name, part in config.proposers.items() if part.candidates > 1]
        if temperature == 0 and config.sampling.temperature > 0 and several:
            raise ConfigError(
                "generation_kwargs ask for greedy decoding (do_sample = False, or temperature = "
                f"0), with which all candidates of proposer {several[0]!r} are the same: keep the "
                "configuration's sampling with the model argument sampling=config, draw one "
                "candidate (n=1), or give --gen_kwargs do_sample=True temperature=T"
            )
        return config.sampling.model_copy(update=chosen)


def cut(text: str, until: Iterable[str]) -> str:
    """`text` up to its first stop string, which is left out."""
    ends = [end for stop in until if (end := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]
