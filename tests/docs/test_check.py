"""The check of the built site finds what it is there for (mkdocs is not needed)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.docs_site.check import main, missing, missing_names, outside_requests
from scripts.docs_site.public import ROOMS, Module, modules, names


@pytest.mark.parametrize(
    "markup",
    [
        '<script src="https://elsewhere/x.js"></script>',
        '<link rel="stylesheet" href="//elsewhere/x.css">',
        '<link rel="preconnect" href="https://elsewhere">',
        '<img src="http://elsewhere/x.png">',
        '<img srcset="https://elsewhere/x.png 2x">',
        "<style>@import 'https://elsewhere/x.css';</style>",
        '<p style="background: url(https://elsewhere/x.png)">',
    ],
)
def test_what_is_loaded_from_elsewhere(markup: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<html>{markup}</html>")
    (found,) = outside_requests(tmp_path)
    assert found.startswith("page.html: ")
    assert "elsewhere" in found
    assert main(str(tmp_path)) == 1


@pytest.mark.parametrize(
    "markup",
    [
        '<a href="https://elsewhere">told of, not loaded</a>',
        '<link rel="canonical" href="https://elsewhere">',
        '<script src="assets/x.js"></script><img src="data:image/png;base64,AA">',
        "<style>p {background: url(images/x.png)}</style>",
    ],
)
def test_what_is_not(markup: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<html>{markup}</html>")
    assert list(outside_requests(tmp_path)) == []


def test_styles_count_too(tmp_path: Path) -> None:
    (tmp_path / "x.css").write_text("@font-face {src: url('https://elsewhere/x.woff2')}")
    assert list(outside_requests(tmp_path)) == ["x.css: https://elsewhere/x.woff2"]


MODULE = Module(
    "m",
    ast.parse(
        """
__all__ = ["C", "f"]

def f(a, *, b=1):
    "A function."

class C:
    x: int
    "A field."

    def __init__(self, y):
        "Parameters belong to the class."
"""
    ),
)
GOOD = """
<h3 id="m.f">f</h3><div class="doc-signature"><code><span>f</span>(a, <b>*</b>, b=1)</code></div>
<h3 id="m.C">C</h3><div class="doc-signature"><code>C(y)</code></div>
<h4 id="m.C.x">x</h4><div class="doc-signature"><code>x: int</code></div>
"""


class TestNames:
    def test_all_is_there(self) -> None:
        assert list(missing(MODULE, GOOD)) == []

    @pytest.mark.parametrize(
        ("lost", "told"),
        [
            ('id="m.f"', "m.f is not documented"),
            ('id="m.C"', "m.C is not documented"),
            ('id="m.C.x"', "m.C.x is not documented"),
            ("b=1", "m.f: its signature does not show b"),
            ("C(y)", "m.C: its signature does not show y"),
        ],
    )
    def test_what_is_lost_is_told(self, lost: str, told: str) -> None:
        (fault,) = missing(MODULE, GOOD.replace(lost, ""))
        assert fault.startswith(told)

    def test_nothing_is_built(self, tmp_path: Path) -> None:
        found = list(missing_names(tmp_path))
        public = [known for room in ROOMS.values() for known in modules(room)]
        assert len(found) == sum(len(names(known)) for known in public)
