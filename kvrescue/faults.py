"""Faults: what pydantic finds wrong with a value, in this library's words.

A fault is told as where, the value, and what is expected there: "limits.max_steps = 'x': expected a
whole number of at least 1". What is expected comes from the field, whatever the kind of error;
pydantic's own words are left for types that are not known here.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    SupportsIndex,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from kvrescue.errors import ConfigError, nearest

__all__ = [
    "CONFIG_ERROR",
    "UNKNOWN_NAME",
    "WRONG_VALUE",
    "expected",
    "is_boolean_number",
    "line",
    "translated",
    "whole_number",
]

UNKNOWN_NAME: Final = "unknown_name"
CONFIG_ERROR: Final = "config_error"
"""Told without the value."""
WRONG_VALUE: Final = "wrong_value"

_PYDANTICS: Final = frozenset(get_args(core_schema.ErrorType))
_LONGEST: Final = 80

Loc: TypeAlias = tuple[int | str, ...]
Slot: TypeAlias = tuple[object, Sequence[object]]
"""A type, and what else is declared of it (limits, components)."""


def whole_number(
    name: str, value: object, least: int | None = None, most: int | None = None
) -> int:
    """`value` as an int (NumPy's whole numbers are some, booleans are not).

    Raises:
        ConfigError: it is none, less than `least`, or more than `most` (which takes a `least`).
    """
    expected = "a whole number" + ("" if least is None else f" of at least {least}")
    if most is not None:
        expected = f"a whole number from {least} to {most}"
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: expected {expected}")
    number = operator.index(value)
    if (least is not None and number < least) or (most is not None and number > most):
        raise ConfigError(f"{name} = {value!r}: expected {expected}")
    return number


def translated(model: object, item: Any, *, nothing: str = "null") -> InitErrorDetails:
    """One of `ValidationError.errors()`, told in our words.

    Args:
        model: the class that was validated; anything else gives words from the error alone.
        item: the error; one that is told already stays as it is.
        nothing: what None is called.
    """
    kind, loc, value = item["type"], tuple(item["loc"]), item["input"]
    told, message = kind, item["msg"]
    if kind == "extra_forbidden":
        name, names = str(loc[-1]), _fields(_slot(model, loc[:-1]))
        told, message = UNKNOWN_NAME, f"unknown field {name!r}{nearest(name, names)}"
    elif loc and loc[-1] == "[key]":
        told, message = CONFIG_ERROR, f"the name {loc[-2]!r} should be a text: put it in quotes"
        loc = loc[:-1]
    elif kind == "invalid_key":
        told, message = CONFIG_ERROR, "the names of fields should be texts: put them in quotes"
    elif kind in ("value_error", "assertion_error"):
        # A check of the whole section has the section for its value, which would say nothing.
        told = CONFIG_ERROR if isinstance(value, Mapping | BaseModel) else WRONG_VALUE
        message = str(item.get("ctx", {}).get("error", message))
    elif kind == "missing":
        found = _expected(*_slot(model, loc), nothing)
        told, message = CONFIG_ERROR, "missing" + (f"; expected {found}" if found else "")
    elif kind in _PYDANTICS or (kind == WRONG_VALUE and not message):
        slot = _slot(model, loc)
        told, message = WRONG_VALUE, f"expected {_expected(*slot, nothing) or _by_error(item)}"
        message += _meant(slot[0], value)
    # The message is passed through as data: it may contain braces.
    context = {key: text for key, text in item.get("ctx", {}).items() if isinstance(text, str)}
    error = PydanticCustomError(told, "{message_}", {**context, "message_": message})
    return InitErrorDetails(type=error, loc=loc, input=value)


def line(item: Any, *, python: bool = False) -> str:
    """A translated error as one line: path, value, what is wrong.

    Args:
        item: one of `ValidationError.errors()`, translated.
        python: write the value as Python does, not as YAML does.
    """
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] in (UNKNOWN_NAME, CONFIG_ERROR):
        return f"{path}: {item['msg']}" if path else str(item["msg"])
    value = item["input"]
    constants = {None: "null", True: "true", False: "false"}
    known = not python and (value is None or isinstance(value, bool))
    shown = constants[value] if known else repr(value)
    if len(shown) > _LONGEST:
        shown = shown[: _LONGEST - 3] + "..."
    return f"{path or 'the value'} = {shown}: {item['msg']}"


def expected(model: type[BaseModel], field: str) -> str:
    """What a field's value should be, in the words of the errors; empty for types that are not
    known here."""
    return _expected(*_slot(model, (field,)), "null")


def is_boolean_number(annotation: object, value: object) -> bool:
    """Whether a bool stands where a number belongs, at any depth; Python takes it for 0 or 1."""
    annotation, _ = _open(annotation, ())
    arms = _arms(annotation)
    if isinstance(value, bool):
        if any(get_origin(arm) is Literal and value in get_args(arm) for arm in arms):
            return False
        return bool({int, float} & {*arms}) and not {bool, object, Any} & {*arms}
    inner = [args[-1 if args[-1] is not ... else 0] for arm in arms if (args := get_args(arm))]
    if isinstance(value, Mapping):
        entries: Iterable[object] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        entries = value
    else:
        return False
    return any(is_boolean_number(part, entry) for part in inner for entry in entries)


# -- where ------------------------------------------------------------------------------------


def _slot(model: object, loc: Loc) -> Slot:
    """What is declared at the end of a path that starts at `model`."""
    slot: Slot = (model, ())
    for part in loc:
        field = _fields(slot).get(str(part))
        if field is not None:
            slot = (field.annotation, field.metadata)
            continue
        slot = _entry(slot)  # the part is a key or an index inside a container
    return slot


def _entry(slot: Slot) -> Slot:
    """What is declared of the entries of a container."""
    for arm in _arms(_open(*slot)[0]):
        args = [arg for arg in get_args(arm) if arg is not ...]
        if args and get_origin(arm) is not Literal:
            return _open(args[-1], ())
    return (None, ())


def _open(annotation: object, metadata: Sequence[object]) -> Slot:
    """`Annotated[...]` taken apart."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = (
            *metadata,
            *(part for m in more for part in getattr(m, "metadata", None) or [m]),
        )
    return annotation, metadata


def _arms(annotation: object) -> list[object]:
    """The types of a union, None left out; of anything else that type alone."""
    if get_origin(annotation) in (Union, types.UnionType):
        arms = [_open(arm, ())[0] for arm in get_args(annotation)]
        return [arm for arm in arms if arm is not type(None)]
    return [annotation]


def _fields(slot: Slot) -> Mapping[str, FieldInfo]:
    for arm in _arms(_open(*slot)[0]):
        if isinstance(arm, type) and issubclass(arm, BaseModel):
            return arm.model_fields
    return {}


# -- what -------------------------------------------------------------------------------------


def _expected(annotation: object, metadata: Sequence[object], nothing: str) -> str:
    """What a value should be, in words; empty for types that are not known here."""
    annotation, metadata = _open(annotation, metadata)
    for part in metadata:
        if text := getattr(part, "expected", None):  # a component
            return str(text)
    arms = _arms(annotation)
    words = [_type_in_words(arm, metadata, nothing) for arm in arms]
    if not all(words):
        return ""
    optional = arms != [annotation] and type(None) in get_args(annotation)
    return " or ".join(words) + f", or {nothing}" * optional


def _type_in_words(kind: object, metadata: Sequence[object], nothing: str) -> str:
    limits = _limits(metadata)
    if kind is bool:
        return "true or false"
    if kind is int:
        return f"a whole number{_range(limits)}"
    if kind is float:
        finite = "finite " if limits.get("allow_inf_nan") is False and not _bounded(limits) else ""
        return f"a {finite}number{_range(limits)}"
    if kind in (str, SecretStr):
        return "a text" + (" that is not empty" if limits.get("min_length") else "")
    if get_origin(kind) is Literal:
        *most, last = map(repr, get_args(kind))
        return " or ".join(filter(None, (", ".join(most), last)))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"a section with the fields {', '.join(kind.model_fields)}"
    return _container(kind, limits, nothing)


def _container(kind: object, limits: Mapping[str, Any], nothing: str) -> str:
    origin = get_origin(kind) or kind
    least = limits.get("min_length")
    some = f" (at least {least})" if least else ""
    entry = _expected(*_entry((kind, ())), nothing) if get_args(kind) else ""
    each = f"; each is {entry}" if entry else ""
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a section of named entries{some}{each}"
    if isinstance(origin, type) and issubclass(origin, list | tuple | set | frozenset):
        return f"a list of entries{some}{each}"
    return ""


def _limits(metadata: Sequence[object]) -> dict[str, Any]:
    names = ("gt", "ge", "lt", "le", "min_length", "allow_inf_nan")
    return {
        name: getattr(part, name)
        for part in metadata
        for name in names
        if getattr(part, name, None) is not None
    }


_SIGNS: Final = {"gt": "greater than", "ge": "of at least", "lt": "less than", "le": "of at most"}


def _range(limits: Mapping[str, Any]) -> str:
    if "ge" in limits and "le" in limits:
        return f" from {limits['ge']:g} to {limits['le']:g}"
    ends = [f"{words} {limits[sign]:g}" for sign, words in _SIGNS.items() if sign in limits]
    return f" {' and '.join(ends)}".replace("and of", "and") if ends else ""


def _bounded(limits: Mapping[str, Any]) -> bool:
    return not {"gt", "ge"}.isdisjoint(limits) and not {"lt", "le"}.isdisjoint(limits)


_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "a section of named entries",
    "mapping": "a section of named entries",
    "model": "a section",
    "dataclass": "a section",
    "none": "null",
}
"""By the first word of the error's type, where the field is not known."""


def _by_error(item: Any) -> str:
    found = _WORDS.get(item["type"].partition("_")[0])
    if found:
        return found
    message = str(item["msg"]).removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def _meant(annotation: object, value: object) -> str:
    """The nearest choice to a misspelt one."""
    choices = [
        choice
        for arm in _arms(_open(annotation, ())[0])
        if get_origin(arm) is Literal
        for choice in get_args(arm)
        if isinstance(choice, str)
    ]
    hint = nearest(value, choices) if isinstance(value, str) and choices else ""
    return hint if "did you mean" in hint else ""
