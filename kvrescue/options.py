"""Options: the base of everything with validated fields, so that wrong ones are typed errors.

Configuration files are validated by `registry.validate`, which knows the path of every field; this
is for components that are built directly, as in `RKV(budget=0)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from kvrescue.errors import ConfigError
from kvrescue.faults import WRONG_VALUE, is_boolean_number, line, translated

__all__ = ["SECRETS", "Options", "checked_by"]

SECRETS = "secrets"
"""Context of a dump that is not to be seen: keys are then part of it. Otherwise they are left out.
"""

_CONFIG = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
"""A dump keeps infinities and NaN, wherever they stand: it is read back."""

if TYPE_CHECKING:

    class Options(BaseModel):
        """See below; type checkers need not know of the metaclass."""

        model_config = _CONFIG

else:

    class _TypedErrors(type(BaseModel)):
        """Turns pydantic's errors of a direct call into one `ConfigError`."""

        def __call__(self, *args, **kwargs):
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as error:
                details = [
                    translated(self, item, nothing="None")
                    for item in error.errors(include_url=False)
                ]
                told = ValidationError.from_exception_data(error.title, details)
                found = "; ".join(
                    line(item, python=True) for item in told.errors(include_url=False)
                )
                raise ConfigError(f"{self.__name__}: {found}") from error

    class Options(BaseModel, metaclass=_TypedErrors):
        """Frozen, closed options. Raises ConfigError (field, value, reason) when called wrongly."""

        model_config = _CONFIG

        @field_validator("*", mode="before")
        @classmethod
        def _no_booleans_for_numbers(cls, value, info):
            """To Python True is the number 1; in a configuration it is a mistake."""
            if is_boolean_number(cls.model_fields[info.field_name].annotation, value):
                raise PydanticCustomError(WRONG_VALUE, "")
            return value


P = ParamSpec("P")
R = TypeVar("R")


def checked_by(
    spec: type[Options], *, but: Collection[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a constructor that takes what a spec's fields say: whoever calls it directly is told of
    wrong values like whoever writes a configuration, and is understood alike: the constructor gets
    what the spec made of a value ("false" is False).

    Parameters that are not fields, are left at their default or named in `but` are not looked at.
    The constructor then raises ConfigError (field, value, reason), too.
    """

    def decorate(constructor: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(constructor)
        fields = set(spec.model_fields).difference(but)

        @functools.wraps(constructor)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:  # wrong parameters: the call itself says which
                return constructor(*args, **kwargs)
            given, known = bound.arguments, signature.parameters
            told = {n: v for n, v in given.items() if n in fields and v is not known[n].default}
            options = spec(**told)
            given.update((name, getattr(options, name)) for name in told)
            return constructor(*bound.args, **bound.kwargs)

        return checked

    return decorate
