"""The API reference: one page per room, written by mkdocstrings from signatures and docstrings."""

from __future__ import annotations

from typing import Final

from scripts.docs_site.public import PACKAGES, ROOMS, Room, home, module, modules, names
from scripts.docs_site.text import table

__all__ = ["api_pages"]

_HEAD: Final = """\
# API

Public is what is listed here; everything else may change without notice. Importing `kvrescue`
imports neither torch nor vLLM: names are loaded when they are used.
"""


def api_pages() -> dict[str, str]:
    """Markdown by the name of the page, without those of rooms that are empty."""
    pages = {name: _page(room) for name, room in ROOMS.items() if modules(room)}
    return {"index": _index(list(pages)), **pages}


def _index(rooms: list[str]) -> str:
    parts = [_HEAD]
    parts.append(
        table(("page", "what"), ((f"[{ROOMS[n].title}]({n}.md)", ROOMS[n].about) for n in rooms))
    )
    for package in PACKAGES:
        known = module(package)
        if known is None:
            continue
        rows = [
            (f"`from {package} import {name}`", f"[`{where}.{name}`][{where}.{name}]")
            for name in sorted(known.names)
            if (where := home(package, name)) != package
        ]
        parts += [f"## {package}", table(("import", "documented as"), rows)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _page(room: Room) -> str:
    parts = [f"# {room.title}", room.about]
    for known in modules(room):
        listed = names(known)
        if not listed:
            continue
        members = "\n".join(f"        - {name}" for name in listed)
        parts.append(f"::: {known.name}\n    options:\n      members:\n{members}")
        borrowed = [
            f"[`{name}`][{where}.{name}]"
            for name in known.names
            if name not in listed and (where := home(known.name, name)) != known.name
        ]
        if borrowed:
            parts.append(f"Also in `{known.name}`: {', '.join(borrowed)}.")
    return "\n\n".join(parts) + "\n"
