"""Which pages the site has beside the files in docs/, and what becomes of links out of docs/."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from scripts.docs_site.api import api_pages
from scripts.docs_site.configuration import configuration
from scripts.docs_site.events import events
from scripts.docs_site.failures import failures
from scripts.docs_site.hooks import hooks

__all__ = ["COPIES", "GENERATED", "OPTIONAL", "ROOT", "for_site", "generated", "is_there"]

ROOT: Final = Path(__file__).parents[2]

COPIES: Final[Mapping[str, str]] = {
    page: file
    for page, file in {
        "index.md": "README.md",
        "changelog.md": "CHANGELOG.md",
        "tiny-model-card.md": "kvrescue/presets/tiny/MODEL_CARD.md",
        "examples.md": "examples/README.md",
    }.items()
    if (ROOT / file).is_file()
}
"""Pages that are files elsewhere in the repository."""

GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "reference/configuration.md": configuration,
    "reference/hooks.md": hooks,
    "reference/events.md": events,
    "reference/errors.md": failures,
}
"""Pages that exist on the site alone, beside those of the API."""

OPTIONAL: Final = frozenset({"testing.md", "replay.md", "calibration.md", "examples.md"})
"""Pages that may be linked and named in the navigation before they are there."""

_LINK: Final = re.compile(
    r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)"
)
_FENCE: Final = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*?$", re.DOTALL | re.MULTILINE)
_ROW: Final = re.compile(r"^\|.*$", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`\n]+`")
_PICTURE: Final = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]*)">\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]*)">\s*</picture>'
)


@functools.cache
def generated() -> dict[str, str]:
    """Markdown of every page that is written from the code or copied, by its place in docs/."""
    pages = {place: make() for place, make in GENERATED.items()}
    pages |= {f"reference/api/{name}.md": text for name, text in api_pages().items()}
    return pages | {
        place: (ROOT / source).read_text(encoding="utf-8") for place, source in COPIES.items()
    }


def is_there(page: str) -> bool:
    """Whether an optional page has come."""
    return page in COPIES or (ROOT / "docs" / page).is_file()


def for_site(text: str, place: str) -> str:
    """A page as the site needs it: links between files become links between pages.

    A link to a file that is no page of the site (a test, a folder) keeps its text alone. One to
    nothing at all stays, so that the build refuses it.

    Args:
        text: Markdown.
        place: of the page in docs/.
    """
    text = _PICTURE.sub(
        lambda m: f"![{m['alt']}]({m['light']}#only-light)\n![{m['alt']}]({m['dark']}#only-dark)",
        text,
    )
    done, parts = 0, []
    for fence in _FENCE.finditer(text):
        parts += [_relinked(text[done : fence.start()], place), fence.group()]
        done = fence.end()
    return "".join([*parts, _relinked(text[done:], place)])


def _relinked(text: str, place: str) -> str:
    # Code hosts need a stroke in a table's code escaped, mkdocs shows the escape.
    text = _ROW.sub(
        lambda row: _CODE.sub(lambda m: m.group().replace("\\|", "|"), row.group()), text
    )
    source = COPIES.get(place, f"docs/{place}")
    pages = {file: page for page, file in COPIES.items()}

    def replaced(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group()
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page = pages.get(found, found.removeprefix("docs/") if found.startswith("docs/") else None)
        if page is not None and page in OPTIONAL and not is_there(page):
            return match["text"]
        if page is None:
            return match["text"] if (ROOT / found).exists() else match.group()
        return (
            f"[{match['text']}]({posixpath.relpath(page, posixpath.dirname(place) or '.')}{anchor})"
        )

    return _LINK.sub(replaced, text)
