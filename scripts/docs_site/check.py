"""What a built site must hold, checked in its HTML: `python -m scripts.docs_site.check site`.

- Nothing is asked of another host when a page is opened.
- Every public name has its place in the API reference, with its real parameters and fields.
"""

from __future__ import annotations

import ast
import functools
import html
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from scripts.docs_site.public import ROOMS, Module, modules, names
from scripts.docs_site.text import documented

__all__ = ["missing", "missing_names", "outside_requests"]

_LOADED: Final = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "input": ("src",),
}
"""Attributes that a browser follows by itself."""
_FOLLOWED: Final = frozenset(
    {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload"}
)
"""Kinds of <link> that it follows."""
_OUTSIDE: Final = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_IN_STYLES: Final = re.compile(
    r"(?:url\(\s*['\"]?|@import\s+['\"])\s*((?:https?:)?//[^'\")\s]+)", re.IGNORECASE
)


class _Reader(HTMLParser):
    """Collects what a page loads from other hosts, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        if "id" in known:
            self.anchors.add(known["id"])
        followed = [known.get(name, "") for name in _LOADED.get(tag, ())]
        if tag == "link" and _FOLLOWED & set(known.get("rel", "").lower().split()):
            followed.append(known.get("href", ""))
        self.outside += [value for value in followed if _OUTSIDE.match(value)]
        self.outside += _IN_STYLES.findall(known.get("style", ""))


def outside_requests(site: Path) -> Iterator[str]:
    """What pages and their styles load from other hosts."""
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        reader = _Reader()
        reader.feed(text)
        styles = "".join(re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL))
        for url in (*reader.outside, *_IN_STYLES.findall(styles)):
            yield f"{page.relative_to(site)}: {url}"
    for style in sorted(site.rglob("*.css")):
        for url in _IN_STYLES.findall(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)}: {url}"


def missing_names(site: Path) -> Iterator[str]:
    """Public names without an anchor, and parameters that their signatures lack."""
    for room, about in ROOMS.items():
        known = modules(about)
        if not known:
            continue
        page = site / "reference" / "api" / f"{room}.html"
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        for each in known:
            yield from missing(each, text)


def missing(known: Module, text: str) -> Iterator[str]:
    """What the page of a module lacks.

    Args:
        known: the module.
        text: HTML as mkdocstrings writes it.
    """
    for name in names(known):
        yield from _missing(known, name, _anchors(text), text)


@functools.lru_cache(maxsize=1)
def _anchors(text: str) -> frozenset[str]:
    """Those of a page, which all modules of a room share."""
    reader = _Reader()
    reader.feed(text)
    return frozenset(reader.anchors)


def _missing(known: Module, name: str, anchors: frozenset[str], text: str) -> Iterator[str]:
    path = f"{known.name}.{name}"
    if path not in anchors:
        yield f"{path} is not documented"
        return
    for node in ast.walk(known.tree):
        if not (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        ):
            continue
        if isinstance(node, ast.ClassDef):
            # Fields without a text of their own have one in a base, or in the class's.
            for field in documented(node.body):
                if field[0] != "_" and f"{path}.{field}" not in anchors:
                    yield f"{path}.{field} is not documented"
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    yield from _parameters(path, inner, text)
        else:
            yield from _parameters(path, node, text)


def _parameters(
    path: str, node: ast.FunctionDef | ast.AsyncFunctionDef, text: str
) -> Iterator[str]:
    """Parameters that the signature below a heading does not show."""
    begin = text.index(f'id="{path}"')
    code = re.search(r"<code>(.*?)</code>", text[text.find("doc-signature", begin) :], re.DOTALL)
    shown = html.unescape(re.sub(r"<[^>]+>", "", code[1])) if code else ""
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg != "self" and not re.search(rf"\b{argument.arg}\b", shown):
            yield f"{path}: its signature does not show {argument.arg}: {shown!r}"


def main(folder: str) -> int:
    """Print what is wrong; the exit code says whether anything is."""
    site = Path(folder)
    faults = [f"loaded from elsewhere: {found}" for found in outside_requests(site)]
    faults += missing_names(site)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
