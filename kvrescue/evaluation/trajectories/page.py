"""The page: one HTML file that holds the data, the styles and the scripts, and asks for nothing.

Whatever a model wrote reaches the page as data only. It is embedded as JSON in which no character
has a meaning to HTML, and a policy in the page's head lets no script run but the one whose hash it
names, so that even a mistake here could not make text a script.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any, Final

from kvrescue.errors import ConfigError
from kvrescue.evaluation.files import write_whole
from kvrescue.evaluation.trajectories.data import Report

__all__ = ["SCRIPTS", "embedded", "render", "script", "write_page"]

SCRIPTS: Final = ("dom", "store", "route", "list", "chart", "steps", "diff", "overview", "app")
"""The modules of the page's script, each after those that it imports."""

_PACKED_FROM: Final = 8192
"""Characters of JSON from which on a piece is compressed."""
_IMPORT: Final = re.compile(r"^import (\{[^}]*\}) from \"\./(\w+)\.js\";$", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:async )?function|const|class)(?= (\w+))", re.MULTILINE)


def render(report: Report) -> str:
    """The page as text."""
    style, program = _asset("page.css"), script()
    pieces = [embedded("index", report.index)]
    pieces += [embedded(f"chunk-{place}", chunk) for place, chunk in enumerate(report.chunks)]
    return _filled(
        _asset("page.html"),
        {
            "policy": html.escape(_policy(style, program)),
            "title": html.escape(_sound(str(report.index["title"]))),
            "style": style,
            "data": "\n".join(pieces),
            "script": program,
        },
    )


def write_page(report: Report, path: str | os.PathLike[str]) -> int:
    """Write the page; whatever happens, the file is the old one or the new one.

    Returns:
        Its size in bytes.

    Raises:
        ConfigError: the file cannot be written.
    """
    content = render(report).encode()
    try:
        write_whole(Path(path), content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"the page {str(path)!r} cannot be written: {reason}; choose another path"
        ) from error
    return len(content)


def embedded(name: str, data: Any) -> str:
    """Data as an element that no text in it can end; large data compressed.

    Args:
        name: of the element.
        data: plain JSON data.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    if len(text) >= _PACKED_FROM:
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        return f'<script type="application/gzip" id="{name}">{packed}</script>'
    # JSON's own escapes: outside of texts these characters do not occur, within them they may be
    # written so. Everything beyond ASCII is escaped already.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def script() -> str:
    """The modules as one script: a page that is opened from a file may not import another file.

    Each becomes a function of its own, so that names that it does not export stay its own.
    """
    return "\n".join(_module(name, _asset(f"{name}.js")) for name in SCRIPTS)


def _module(name: str, source: str) -> str:
    exported = ", ".join(match[2] for match in _EXPORT.finditer(source))
    body = _IMPORT.sub(r"const \1 = module_\2;", _EXPORT.sub(r"\1", source)).strip()
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _filled(template: str, parts: dict[str, str]) -> str:
    """The template with its parts, in one pass: what is filled in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _policy(style: str, program: str) -> str:
    def only(content: str) -> str:
        digest = hashlib.sha256(content.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    return (
        f"default-src 'none'; style-src {only(style)}; script-src {only(program)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _sound(text: str) -> str:
    """Without halves of surrogate pairs, which have no encoding."""
    return text.encode(errors="replace").decode()
