"""Options of a component: frozen, hashable, and the same after a trip through a file."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel

from kvrescue.errors import ConfigError
from kvrescue.registry import Kind, Registry, current, resolve_component
from kvrescue.testing.laws import Law, broken

__all__ = ["OPTIONS", "check_options", "name_of", "require"]

OPTIONS: Final = Law(
    "options",
    "A component is a frozen value: hashable, and equal to itself after its options were written "
    "to a file and read back under its `kind`.",
    "A run that is resumed, a worker process or a saved configuration would use another component "
    "than the one that was configured, or could not name it at all.",
    "Give the class a `kind`, keep every option in a pydantic field with a type that JSON can "
    "hold, and leave the base class's configuration (frozen, extra='forbid') as it is.",
)


def require(value: object, base: type, what: str) -> None:
    """Raises ConfigError unless `value` is an instance of `base`."""
    if isinstance(value, base):
        return
    if isinstance(value, type) and issubclass(value, base):
        raise ConfigError(
            f"{what} = {value.__name__} is a class; give an instance, as in "
            f"check_{what}({value.__name__}(...))"
        )
    raise ConfigError(
        f"{what} = {value!r}: expected a kvrescue {base.__name__} "
        f"({base.__module__}.{base.__qualname__})"
    )


def name_of(kind: Kind, component: object) -> str:
    """How errors call a component."""
    return f"{kind} {getattr(component, 'kind', '') or type(component).__name__!r}"


def check_options(kind: Kind, component: BaseModel) -> None:
    """Raises LawBroken when the options of a component do not survive."""
    __tracebackhide__ = True
    cls, who = type(component), name_of(kind, component)
    label = getattr(cls, "kind", "")
    if not isinstance(label, str) or not label:
        broken(
            OPTIONS,
            who,
            f"`kind` is {label!r}",
            f'a name to register it under: `kind: ClassVar[str] = "..."` in {cls.__name__}',
        )
    try:
        written = json.dumps({"kind": label, **component.model_dump(mode="json")})
    except Exception as error:
        broken(OPTIONS, who, f"{type(error).__name__}: {error}", "options that JSON can hold")
    try:
        again = _read(kind, cls, json.loads(written))
    except Exception as error:
        broken(
            OPTIONS,
            who,
            f"written as {written}, it cannot be read back: {type(error).__name__}: {error}",
            "the same component",
        )
    if again != component or type(again) is not cls:
        broken(
            OPTIONS, who, f"written as {written}, it is read back as {again!r}", f"{component!r}"
        )
    try:
        same = hash(again) == hash(component)
    except TypeError as error:
        broken(OPTIONS, who, f"it cannot be hashed: {error}", "options that are hashable")
    if not same:
        broken(OPTIONS, who, f"{again!r} hashes to another number than its equal", "one number")
    _check_frozen(component, who)


def _read(kind: Kind, cls: type[BaseModel], section: Any) -> BaseModel:
    """The component of a section, read through a registry that knows its class by its kind."""
    label = section["kind"]
    registry = Registry()
    for entry in current().entries():
        if (entry.kind, entry.name) != (kind, label):
            registry.add(entry.kind, entry.name, entry.component, entry.plugin)
    registry.add(kind, label, cls, "kvrescue.testing")
    with registry.active():
        return resolve_component(kind, section)


def _check_frozen(component: BaseModel, who: str) -> None:
    __tracebackhide__ = True
    for field in type(component).model_fields:
        before = getattr(component, field)
        try:
            setattr(component, field, before)
        except Exception:
            continue
        broken(OPTIONS, who, f"`{field}` can be set after construction", "a frozen component")
    unknown = "no_option_has_this_name"
    try:
        type(component).model_validate({**component.model_dump(), unknown: 1})
    except Exception:
        return
    broken(OPTIONS, who, f"an unknown option ({unknown}) is accepted", "an error that names it")
