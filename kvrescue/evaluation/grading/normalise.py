"""One spelling for answers that are written differently and mean the same.

What the official grader of Qwen2.5-Math normalises is normalised here, in code of our own:
fractions, `\\left` and `\\right`, texts, units, degrees, dollars, per cents, number words, spaces.
What it destroys on the way is left whole: variables that are also the letter of a unit (`x + m`),
`\\pm`, words that contain another (`information`), `j` beside `i`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kvrescue.answers import extract_answer
from kvrescue.evaluation.grading.words import UNITS, number_in_words

__all__ = ["normalise"]


def normalise(answer: str) -> str:
    """The answer without what does not change its meaning; never empty unless it was blank.

    Args:
        answer: LaTeX or plain text, with or without `$` or a box around it.
    """
    plain = answer.strip()
    if (boxed := extract_answer(plain)) is not None and plain.lstrip("$ ").startswith("\\"):
        plain = boxed
    text = plain
    for change in _CHANGES:
        text = change(text)
    return text or _spaces(plain)


def _replacing(pattern: str, by: str, flags: int = 0) -> Callable[[str], str]:
    compiled = re.compile(pattern, flags)
    return lambda text: compiled.sub(by, text)


_CHARACTERS: Final = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{INFINITY}": r"\infty ",
        "\N{DEGREE SIGN}": r"^\circ ",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
        "\N{NOT EQUAL TO}": r"\ne ",
        "\N{UNION}": r"\cup ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{NO-BREAK SPACE}": " ",
        "\n": " ",
        "\t": " ",
        "\r": " ",
    }
)

_SYNONYMS: Final = {
    "dfrac": "frac",
    "tfrac": "frac",
    "cfrac": "frac",
    "dbinom": "binom",
    "tbinom": "binom",
    "leq": "le",
    "leqslant": "le",
    "geq": "ge",
    "geqslant": "ge",
    "neq": "ne",
    "lbrace": "{",
    "rbrace": "}",
    "lbrack": "[",
    "rbrack": "]",
    "lvert": "|",
    "rvert": "|",
    "vert": "|",
    "varnothing": "emptyset",
    "Bbb": "mathbb",
    "rightarrow": "to",
    "operatorname": "text",
    "textbf": "text",
    "textit": "text",
    "textrm": "text",
    "mathrm": "text",
    "mathbf": "text",
    "mathit": "text",
    "mbox": "text",
    "degree": "circ",
}
_COMMAND: Final = re.compile(r"\\([a-zA-Z]+)")
_SILENT: Final = {"displaystyle", "limits", "nolimits", "quad", "qquad", "left", "right"} | {
    f"{size}{side}" for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r", "m")
}
_BARE: Final = {"{", "}", "[", "]", "|"}


def _command(match: re.Match[str]) -> str:
    name = match[1]
    if name in _SILENT:
        return " "
    other = _SYNONYMS.get(name)
    if other is None:
        return match[0]
    if other in ("[", "]", "|"):
        return other
    # After a command that ends in a letter, TeX needs a space where a letter follows.
    return f"\\{other}" + (
        "" if other in _BARE else " " * match.string[match.end() :][:1].isalpha()
    )


def _commands(text: str) -> str:
    return _COMMAND.sub(_command, text)


_TEXT: Final = re.compile(r"\\text\s*\{([^{}]*)\}")
_LAST_TEXT: Final = re.compile(
    r"(?:(?<=[\d})\]])|(?<=\\pi))[\s~]*\\text\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*\Z"
)


def _texts(text: str) -> str:
    """Words out of their `\\text{...}`; one that ends a number is a unit or a remark, and goes."""
    joined = re.sub(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}", " and ", text)
    return _TEXT.sub(lambda match: f" {match[1].strip()} ", _LAST_TEXT.sub("", joined))


_LAST_WORD: Final = re.compile(r"(?<=[\d})\]\s])([a-zA-Z]+)\.?(?:\^\{?\d\}?)?\s*\Z")


def _units(text: str) -> str:
    """Words for units after a number; never one letter alone, which may be a variable."""
    shorter = text
    while (found := _LAST_WORD.search(shorter)) and found[1].lower() in UNITS:
        shorter = shorter[: found.start()].rstrip(" ~/")
    return shorter if re.search(r"\d|\\[a-z]+", shorter) else text


def _words(text: str) -> str:
    number = number_in_words(text)
    return text if number is None else str(number)


_ARGUMENTS: Final = {
    "frac": 2,
    "binom": 2,
    "sqrt": 1,
    "mathbb": 1,
    "mathcal": 1,
    "vec": 1,
    "hat": 1,
    "bar": 1,
    "overline": 1,
    "overrightarrow": 1,
}
_WITH_ARGUMENTS: Final = "|".join(_ARGUMENTS)
_TAKES_ARGUMENTS: Final = re.compile(rf"\\({_WITH_ARGUMENTS})(?![a-zA-Z])\s*(\[[^\[\]]*\])?")
_ARGUMENT: Final = re.compile(
    rf"\s*(\\(?!(?:{_WITH_ARGUMENTS})(?![a-zA-Z]))[a-zA-Z]+|[0-9a-zA-Z])\s*"
)


def _braces(text: str) -> str:
    """`\\frac12`, `\\frac\\pi2`, `\\sqrt2` and `\\mathbb R` with their braces."""
    for command in reversed(list(_TAKES_ARGUMENTS.finditer(text))):  # the inner ones first
        position = command.end()
        for _ in range(_ARGUMENTS[command[1]]):
            if argument := _ARGUMENT.match(text, position):
                braced = f"{{{argument[1]}}}"
                text = text[:position] + braced + text[argument.end() :]
                position += len(braced)
            else:
                position = _after_braces(text, position)
    return text


def _after_braces(text: str, position: int) -> int:
    """The place after the braces that open here; here, where none do."""
    depth = 0
    for place in range(position, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place + (text[place] == "}")
    return position


def _spaces(text: str) -> str:
    """No spaces, but the one that ends a command before a letter."""
    return re.sub(r"(\\[a-zA-Z]+)\s+(?=[a-zA-Z])|\s+", lambda m: m[1] + " " if m[1] else "", text)


def _outer_braces(text: str) -> str:
    while text.startswith("{") and text.endswith("}") and _closes_at_end(text):
        text = text[1:-1]
    return text


def _closes_at_end(text: str) -> bool:
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return position == len(text) - 1
    return False


_CHANGES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: text.translate(_CHARACTERS),
    _replacing(r"\\(?:left|right)\s*\.", " "),
    _replacing(r"(?<!\\)\\[()\[\]]|\\?\$", " "),  # delimiters of mathematics, and dollars
    _replacing(r"(?<!\\)\\[!,;:> ]|~", " "),
    _commands,
    _replacing(r"(?<=\d)\{,\}(?=\d)", ","),
    _replacing(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])", " "),
    _replacing(r"\\?%", " "),
    _texts,
    str.strip,
    _replacing(r"[\s.,;:]+\Z", ""),
    _replacing(r"\A[\s:=]+", ""),
    _units,
    _words,
    _replacing(r"\s*,?\s+(?:and|or)\s+", ","),
    _replacing(r"(?<![a-zA-Z\\])(?:infinity|inf)(?![a-zA-Z])", r"\\infty ", re.IGNORECASE),
    _braces,
    _replacing(r"([_^])\s*(\d+|\w)", r"\1{\2}"),
    _spaces,
    _replacing(r"(?<![\w)}\]|])\+(?=[\d\\.])", ""),  # a plus that is a sign
    _replacing(r"(?<![\w.])\.(?=\d)", "0."),
    _replacing(r"(\d\.\d*?)0+(?!\d)", r"\1"),
    _replacing(r"(?<=\d)\.(?!\d)", ""),
    _replacing(r"\A(-?)(\d+)/(\d+)\Z", r"\1\\frac{\2}{\3}"),
    _outer_braces,
)
