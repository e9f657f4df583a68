"""The events reference: what is told of a trajectory, and its form as JSON, from the classes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Final, get_args, get_type_hints

from kvrescue.events import SCHEMA_VERSION, Event, RoundSkipped, as_dict
from kvrescue.types import Question
from scripts.docs_site.text import attribute_docs, one_line, table

__all__ = ["EVENTS", "event_name", "events", "values"]

EVENTS: Final[tuple[type[Any], ...]] = get_args(Event)

_HEAD: Final = f"""\
# Events

`Rescue.stream` and `Rescue.astream` yield these, observers are called with them, and
`kvrescue solve --trace FILE.jsonl` appends each as one line of JSON:

```json
EXAMPLE
```

A line has `schema` ({SCHEMA_VERSION}; raised when a field changes its meaning or goes away, not
when one is added), `event`, and the fields of the event. NaN and infinity are texts, as JSON has no
number for them. `kvrescue.events.from_dict` reads a line back.

A trajectory that ends without an error tells, in this order: `trajectory_started`; for every round
`candidate_finished` for each candidate, then `step_committed` or `round_skipped`; and at the end
`trajectory_finished`.
"""


def events() -> str:
    """The page as Markdown."""
    example = RoundSkipped(Question("2 + 2 = ?").id, draw=3, step=2, reason="flagged", in_a_row=1)
    parts = [_HEAD.replace("EXAMPLE", json.dumps(as_dict(example)))]
    for event in EVENTS:
        parts += [f"## {event_name(event)}", _about(event), _fields(event)]
    parts.append("## Values")
    for value in values(EVENTS):
        listed = _members(value) if issubclass(value, Enum) else _fields(value)
        parts += [f"### {value.__name__}", _about(value), listed]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def event_name(event: type[Any]) -> str:
    """The name of an event in JSON."""
    return "".join(
        f"_{letter.lower()}" if letter.isupper() else letter for letter in event.__name__
    )[1:]


def values(roots: Iterable[type[Any]]) -> list[type[Any]]:
    """The classes that events hold, at any depth, in the order in which they are met."""
    found: dict[type[Any], None] = {}

    def visit(hint: object) -> None:
        for part in get_args(hint):
            visit(part)
        if (
            not isinstance(hint, type)
            or hint in found
            or not hint.__module__.startswith("kvrescue")
        ):
            return
        found[hint] = None
        if is_dataclass(hint):
            for inner in get_type_hints(hint).values():
                visit(inner)

    for root in roots:
        for hint in get_type_hints(root).values():
            visit(hint)
    return list(found)


def _about(value: type[Any]) -> str:
    where = f"{value.__module__}.{value.__name__}"
    return f"{inspect.getdoc(value)}\n\nIn Python: [`{value.__name__}`][{where}]."


def _fields(value: type[Any]) -> str:
    docs = attribute_docs(value)
    return table(
        ("field", "type", "meaning"),
        ((f"`{f.name}`", f"`{f.type}`", _meaning(f, docs)) for f in fields(value)),
    )


def _meaning(field: Field[Any], docs: Mapping[str, str]) -> str:
    text = one_line(docs.get(field.name, ""))
    if field.default is MISSING or field.default in (None, "", 0, ()):
        return text
    return f"{text} Default: `{field.default}`."


def _members(value: type[Enum]) -> str:
    docs = attribute_docs(value)

    def rows() -> Iterator[tuple[str, str]]:
        for member in value:
            yield f"`{member.value}`", docs.get(member.name, "")

    return table(("value", "meaning"), rows())
