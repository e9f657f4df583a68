"""Pages: links lead somewhere, pictures are what draws them, and what the site makes of a page."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest

from scripts.docs_site.pages import COPIES, OPTIONAL, ROOT, for_site, generated, is_there
from scripts.docs_site.picture import FOLDER, PALETTES, picture

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s#]*)(#[^)\s]*)?\)")


def headings(text: str) -> set[str]:
    """Anchors of a page's headings, as code hosts and mkdocs alike make them for plain words."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {
        "#" + re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in found
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """On a code host, where pages that are made while the site is built are missing."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for target, anchor in LINK.findall(text):
        if "://" in target:
            continue
        found = (
            posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        )
        inside = found.removeprefix("docs/")
        if inside in generated() or (inside in OPTIONAL and not is_there(inside)):
            continue
        assert (ROOT / found).exists(), f"{page}: {target}"
        if anchor:
            assert anchor in headings((ROOT / found).read_text()), f"{page}: {target}{anchor}"


@pytest.mark.parametrize("palette", PALETTES)
def test_pictures_are_up_to_date(palette: str) -> None:
    file = FOLDER / f"step-{palette}.svg"
    assert file.read_text() == picture(palette), "run: python -m scripts.docs_site.picture"


def test_palettes_name_the_same_colours() -> None:
    first, *others = PALETTES.values()
    assert all(set(other) == set(first) for other in others)


class TestForSite:
    def test_links_of_the_readme_become_links_of_the_index(self) -> None:
        text = "[a](docs/vllm.md#options) [b](kvrescue/presets/tiny/MODEL_CARD.md) [c](https://d)"
        assert for_site(text, "index.md") == (
            "[a](vllm.md#options) [b](tiny-model-card.md) [c](https://d)"
        )

    def test_what_is_no_page_keeps_its_text(self) -> None:
        assert for_site("[its tests](../tests/harness)", "lm-eval.md") == "its tests"

    def test_what_is_nowhere_stays_and_is_refused_by_the_build(self) -> None:
        assert for_site("[a](nowhere.py)", "vllm.md") == "[a](nowhere.py)"

    def test_code_is_left_alone(self) -> None:
        text = "```python\nx[i](docs/vllm.md)\n```\n[a](../README.md)\n"
        assert for_site(text, "vllm.md") == text.replace("../README.md", "index.md")

    @pytest.mark.parametrize("page", sorted(OPTIONAL))
    def test_pages_that_may_be_missing(self, page: str) -> None:
        there = is_there(page)
        assert for_site(f"[a]({page})", "vllm.md") == (f"[a]({page})" if there else "a")

    def test_strokes_in_the_code_of_a_table(self) -> None:
        text = "| `a\\|b` | c \\| d |\n`a\\|b`"
        assert for_site(text, "vllm.md") == "| `a|b` | c \\| d |\n`a\\|b`"

    def test_pictures(self) -> None:
        text = for_site((ROOT / "docs" / "concepts.md").read_text(), "concepts.md")
        assert "(images/step-light.svg#only-light)" in text
        assert "(images/step-dark.svg#only-dark)" in text
        assert "<picture>" not in text


def test_the_site_has_what_is_copied() -> None:
    for page, file in COPIES.items():
        assert generated()[page] == (ROOT / file).read_text()
        assert not Path(ROOT, "docs", page).exists()
