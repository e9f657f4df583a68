"""model_args: what composition is evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator

from kvrescue.config import RescueConfig, load_config
from kvrescue.engines import Engine
from kvrescue.errors import ConfigError
from kvrescue.evaluation.methods import BASE, Method, compose
from kvrescue.options import Options
from kvrescue.rules import OnError
from kvrescue.sampling import MOST_CANDIDATES

__all__ = ["ModelArgs", "SamplingFrom", "from_json"]

SamplingFrom: TypeAlias = Literal["task", "config"]


class ModelArgs(Options):
    """lm_eval's `model_args` of the model `kvrescue`."""

    preset: str | None = None
    """A shipped preset."""
    config: str | None = None
    """A YAML file instead."""
    engine: Engine | None = None
    """What the models run on; None: as configured."""
    method: Method | None = None
    """Which method of the paper, derived from the configuration (`evaluation.methods`). None: the
    configuration as it stands or, when `n` is given, `kv_rescue`."""
    n: int | None = Field(default=None, ge=1, le=MOST_CANDIDATES)
    """Candidates of each proposer in a step; None with a `method`: as many as the base has."""
    seed: int | None = None
    """Of the run; None: as configured."""
    set: tuple[str, ...] = ()
    """Overrides, PATH=VALUE each: a list, or one text with `;` between them."""
    sampling: SamplingFrom = "task"
    """Whether temperature, top_p, top_k and do_sample of a task are applied, or those of the
    configuration stand whatever the task says."""
    on_error: OnError = "raise"
    """`degrade`: a problem that fails is answered with nothing, and the log says so."""

    @field_validator("set", mode="before")
    @classmethod
    def _separated(cls, value: object) -> object:
        # lm_eval splits model_args at commas, so several overrides need another separator.
        return tuple(filter(str.strip, value.split(";"))) if isinstance(value, str) else value

    def rescue_config(self) -> RescueConfig:
        """The configuration that these arguments describe.

        Raises:
            ConfigError: neither or both of `preset` and `config` are given, or see `load_config`
                and `compose`.
        """
        if (self.preset is None) == (self.config is None):
            found = "both" if self.preset else "neither"
            raise ConfigError(
                f"model_args: found {found} of preset and config; give preset=NAME or "
                "config=FILE.yaml, one of them"
            )
        overrides = list(self.set) + ([] if self.seed is None else [f"seed={self.seed}"])
        source = Path(self.config) if self.config is not None else str(self.preset)
        config = load_config(source, overrides, engine=self.engine)
        if self.method is None and self.n is None:
            return config
        base = config.proposers.get(BASE)
        n = self.n if self.n is not None else base.candidates if base is not None else 1
        return compose(config, self.method or "kv_rescue", n)


def from_json(text: str) -> dict[str, Any] | None:
    """model_args that are given as a JSON object; None for anything else.

    Raises:
        ConfigError: a text that starts like one and is none.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"model_args {text!r}: not JSON: {error}") from error
    return dict(found)
