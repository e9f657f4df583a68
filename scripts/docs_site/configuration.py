"""The configuration reference: sections and kinds of component, from the models that check them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from kvrescue import plugins, presets
from kvrescue.config import ProposerConfig, RescueConfig
from kvrescue.faults import expected
from kvrescue.registry import KINDS, Kind
from kvrescue.rules import Limits
from kvrescue.sampling import Sampling
from scripts.docs_site.public import home
from scripts.docs_site.text import attribute_docs, table

__all__ = ["SECTIONS", "components", "configuration", "fields"]

_HEAD: Final = """\
# Configuration

A run is described by a YAML file (or a mapping in Python). `kvrescue config --preset tiny` prints
one in full; `--set PATH=VALUE` changes one value of it, `PATH` being the names on this page joined
by dots: `--set proposers.base.policy.evictor.budget=64`. An entry of a list is named by its
position or its kind: `proposers.base.detectors.gzip.threshold=0.2`.

A component is a section with its `kind` and that kind's options, or just the kind's name where no
option is required. What is expected is told in the words of the errors. Unknown fields are errors.
"""

SECTIONS: Final[Mapping[str, type[BaseModel]]] = {
    "The file": RescueConfig,
    "proposers.NAME": ProposerConfig,
    "sampling": Sampling,
    "limits": Limits,
}

_ABOUT: Final[Mapping[Kind, str]] = {
    "policy": "`proposers.NAME.policy`: what proposes steps.",
    "evictor": "`proposers.NAME.policy.evictor`: what decides which cached entries stay.",
    "detector": "`proposers.NAME.detectors`: a list of what may abort candidates.",
    "scorer": "`scorer`: what ranks the candidates of a step.",
}


def configuration() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for title, model in SECTIONS.items():
        parts += [f"## {title}", _about(model), fields(model)]
    for kind in KINDS:
        parts += [f"## Kinds of {kind}", _ABOUT[kind]]
        for name, component in components(kind).items():
            parts += [f"### {kind} `{name}`", _about(component), fields(component)]
    parts.append("## Presets\n\n`--preset NAME`, or `Rescue.from_config(NAME)`.")
    parts += [f"### `{name}`\n\n```yaml\n{presets.read(name)}```" for name in presets.names()]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def components(kind: Kind) -> dict[str, type[BaseModel]]:
    """The built-in components of a kind, by name."""
    registry = plugins.Plugins().registry
    with registry.active():
        return {name: registry.load(kind, name) for name in registry.names(kind)}


def fields(model: type[BaseModel]) -> str:
    """The options of a section or component as a table."""
    return table(("field", "expected", "default", "meaning"), _rows(model))


def _rows(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    docs = attribute_docs(model)
    for name, field in model.model_fields.items():
        words = expected(model, name)
        yield f"`{name}`", words, _default(model, name), docs.get(name, field.description or "")


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return f"[its defaults](#{name})"
    return f"`{json.dumps(value)}`"


def _about(model: type[BaseModel]) -> str:
    where = home(model.__module__, model.__name__)
    text = inspect.getdoc(model) or ""
    return f"{text}\n\nIn Python: [`{model.__name__}`][{where}.{model.__name__}]."
