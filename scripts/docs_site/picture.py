"""The picture of one step, for light and for dark pages.

python -m scripts.docs_site.picture    # writes docs/images/step-light.svg and step-dark.svg
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

__all__ = ["FOLDER", "PALETTES", "picture"]

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"

PALETTES: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {
        "ink": "#1f2430",
        "soft": "#5b6472",
        "line": "#9aa3b2",
        "panel": "#f6f7f9",
        "paper": "#ffffff",
        "base": "#3b6fb6",
        "base_fill": "#d6e4f7",
        "helper": "#2e8b57",
        "helper_fill": "#d3efdf",
        "question": "#e4e7ec",
        "bad": "#c0392b",
        "bad_fill": "#f9dedb",
    },
    "dark": {
        "ink": "#e8eaf0",
        "soft": "#a4adbd",
        "line": "#6b7485",
        "panel": "#262a35",
        "paper": "#1e2129",
        "base": "#7fb0f0",
        "base_fill": "#2a4468",
        "helper": "#6fcf97",
        "helper_fill": "#22503a",
        "question": "#3a4050",
        "bad": "#f08a7e",
        "bad_fill": "#5a2b29",
    },
}

WIDTH: Final = 760
HEIGHT: Final = 676
LANES: Final = {"base": 20, "helper": 390}
LANE_WIDTH: Final = 350


class _Drawing:
    """Shapes in the colours of one palette."""

    def __init__(self, colours: Mapping[str, str]) -> None:
        self.colours = colours
        self.shapes: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "",
        *,
        radius: float = 6,
        dashed: bool = False,
        weight: float = 1.5,
    ) -> None:
        border = f' stroke="{self.colours[stroke]}" stroke-width="{weight}"' if stroke else ""
        dashes = ' stroke-dasharray="3 3"' if dashed else ""
        paint = self.colours[fill] if fill else "none"
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'fill="{paint}"{border}{dashes}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = "ink",
        *,
        size: float = 15,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="{self.colours[colour]}"{weight}>{escape(words)}</text>'
        )

    def path(
        self, steps: str, colour: str = "line", *, weight: float = 1.5, arrow: bool = False
    ) -> None:
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.shapes.append(
            f'<path d="{steps}" fill="none" stroke="{self.colours[colour]}" '
            f'stroke-width="{weight}"{end}/>'
        )

    def svg(self, title: str) -> str:
        arrow = (
            '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" '
            f'fill="{self.colours["line"]}"/></marker>'
        )
        body = "\n".join(self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">\n'
            f"<title>{escape(title)}</title>\n<defs>{arrow}</defs>\n{body}\n</svg>\n"
        )


def picture(palette: str) -> str:
    """The picture as SVG.

    Args:
        palette: "light" or "dark".
    """
    drawing = _Drawing(PALETTES[palette])
    drawing.text(20, 26, "Shared trajectory before the step", "soft")
    _trajectory(drawing, 36, new=False)
    for x in LANES.values():
        drawing.path(f"M312 70V84H{x + LANE_WIDTH / 2:g}V98", arrow=True)
    _lane(
        drawing,
        "base",
        "Base, evicted cache",
        "keeps B best-scored entries and w newest",
        cache="..x.xx..x.xxx",
        candidates=(("0.31", 9, False), ("", 6, True), ("0.62", 11, False)),
    )
    _lane(
        drawing,
        "helper",
        "Helper, full cache",
        "a smaller model that forgets nothing",
        cache="x" * 13,
        candidates=(("0.55", 12, False), ("0.88", 10, False), ("0.47", 8, False)),
    )
    _choice(drawing)
    drawing.text(20, 592, "Shared trajectory after the step", "soft")
    _trajectory(drawing, 602, new=True)
    drawing.text(
        20,
        660,
        "The helper adopts the fork it drew; the base reads the step in one pass, then evicts.",
        "soft",
        size=14,
    )
    return drawing.svg(
        "One step: the evicted base and the helper propose N candidates each, detectors abort "
        "degenerate ones, the process reward model scores the rest, and the best one extends the "
        "shared trajectory of both."
    )


def _trajectory(drawing: _Drawing, y: float, *, new: bool) -> None:
    steps = [("question", "question", 150), ("base", "step 1", 84), ("helper", "step 2", 84)]
    steps += [("base", "step 3", 84)]
    if new:
        steps.append(("helper", "step 4", 110))
    x = 20.0
    for kind, words, width in steps:
        fresh = words == "step 4"
        fill = "question" if kind == "question" else f"{kind}_fill"
        stroke = "line" if kind == "question" else kind
        drawing.box(x, y, width, 34, fill, stroke, weight=3 if fresh else 1.5)
        drawing.text(x + width / 2, y + 22, words, anchor="middle", bold=fresh)
        x += width + 8


def _lane(
    drawing: _Drawing,
    kind: str,
    title: str,
    subtitle: str,
    *,
    cache: str,
    candidates: Sequence[tuple[str, int, bool]],
) -> None:
    x, y = LANES[kind], 100
    drawing.box(x, y, LANE_WIDTH, 326, "panel", "line", radius=10)
    drawing.text(x + 16, y + 28, title, kind, size=17, bold=True)
    drawing.text(x + 16, y + 50, subtitle, "soft", size=14)
    for place, held in enumerate(cache):
        cell = x + 16 + place * 24.6
        if held == "x":
            drawing.box(cell, y + 64, 20, 20, f"{kind}_fill", kind, radius=3)
        else:
            drawing.box(cell, y + 64, 20, 20, "", "line", radius=3, dashed=True)
    drawing.text(x + 16, y + 116, "N candidates, drawn from a fork each", size=14)
    for row, (score, tokens, aborted) in enumerate(candidates):
        _candidate(drawing, kind, x + 16, y + 130 + row * 62, score, tokens, aborted)


def _candidate(
    drawing: _Drawing, kind: str, x: float, y: float, score: str, tokens: int, aborted: bool
) -> None:
    best = score == "0.88"
    drawing.box(x, y, 318, 50, "paper", kind if best else "line", weight=3 if best else 1.5)
    for place in range(tokens):
        bad = aborted and place >= 2
        fill, stroke = ("bad_fill", "bad") if bad else (f"{kind}_fill", kind)
        drawing.box(x + 12 + place * 17, y + 17, 13, 16, fill, stroke, radius=2, weight=1)
    if aborted:
        end = x + 12 + tokens * 17
        drawing.path(f"M{end + 2} {y + 12}v26", "bad", weight=3)
        drawing.text(end + 14, y + 22, "aborted by a", "bad", size=14)
        drawing.text(end + 14, y + 39, "detector, unscored", "bad", size=14)
    else:
        drawing.text(x + 306, y + 31, score, anchor="end", size=17, bold=best)


def _choice(drawing: _Drawing) -> None:
    for x in LANES.values():
        drawing.path(f"M{x + LANE_WIDTH / 2:g} 426V458", arrow=True)
    drawing.box(20, 460, 720, 70, "panel", "line", radius=10)
    drawing.text(36, 488, "Process reward model", size=17, bold=True)
    drawing.text(36, 512, "a score in [0, 1] for every survivor", "soft", size=14)
    drawing.text(724, 488, "best: 0.88, of the helper", "helper", size=17, anchor="end", bold=True)
    drawing.text(724, 512, "it extends the trajectory of both", "soft", size=14, anchor="end")
    drawing.path("M497 530V598", "line", arrow=True)


def main() -> None:
    """Write both pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for palette in PALETTES:
        (FOLDER / f"step-{palette}.svg").write_text(picture(palette), encoding="utf-8")


if __name__ == "__main__":
    main()
