"""What mkdocs is told while it builds (`hooks:` in mkdocs.yml)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docs_site.pages import OPTIONAL, ROOT, for_site, generated, is_there


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out what the navigation names and is not there yet; add the rooms of the API."""
    rooms = [place for place in generated() if place.startswith("reference/api/")]
    config.nav = _known(config.nav, rooms)
    listed = set(_targets(config.nav))
    docs = ROOT / "docs"
    files = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    more = [file for file in files if file not in listed]
    if more:
        config.nav.append({"More": more})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written from the code."""
    for place, text in generated().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links between files become links between pages."""
    return for_site(markdown, page.file.src_uri)


def _known(entries: Any, rooms: list[str]) -> Any:
    if isinstance(entries, dict):
        return {title: _known(inner, rooms) for title, inner in entries.items()}
    if not isinstance(entries, list):
        return entries
    found: list[Any] = []
    for entry in entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if target == "reference/api/*":
            found += rooms
        elif isinstance(target, list) or target not in OPTIONAL or is_there(target):
            found.append(_known(entry, rooms))
    return found


def _targets(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
        return
    for entry in entries.values() if isinstance(entries, dict) else entries:
        yield from _targets(entry)
