"""Words in answers: numbers that are written out, and units."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["UNITS", "number_in_words"]

_SMALL: Final = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES: Final = {
    **{word: value for value, word in enumerate(_SMALL)},
    **{word: 10 * value for value, word in enumerate(_TENS, 2)},
}
_SCALES: Final = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_MOST: Final = 80
"""Characters of the longest text that is read as a number."""


def number_in_words(text: str) -> int | None:
    """The whole number that a text spells ("twenty-five", "one hundred and six"), or None."""
    if len(text) > _MOST:
        return None
    words = [word for word in re.split(r"[\s-]+", text.strip().lower()) if word]
    if not words or words[0] == "and" or words[-1] == "and":
        return None
    total = part = 0
    before = ""
    for word in words:
        if word in _VALUES:
            # "two three" is a list and "ten one" is nothing; only tens take a unit.
            if before in _VALUES and not (_VALUES[before] >= 20 and 0 < _VALUES[word] < 10):
                return None
            part += _VALUES[word]
        elif word == "hundred":
            part = (part or 1) * 100
        elif word in _SCALES:
            total += (part or 1) * _SCALES[word]
            part = 0
        elif word != "and" or before not in _SCALES:
            return None
        before = word
    return total + part


def _plurals(*words: str) -> set[str]:
    return {form for word in words for form in (word, f"{word}s")}


UNITS: Final[frozenset[str]] = frozenset(
    _plurals(
        *("meter", "metre", "kilometer", "kilometre", "centimeter", "centimetre", "millimeter"),
        *("millimetre", "mile", "yard", "inche", "light-year"),
        *("gram", "kilogram", "milligram", "pound", "ounce", "ton", "tonne"),
        *("liter", "litre", "milliliter", "millilitre", "gallon", "cup", "pint", "quart"),
        *("second", "minute", "hour", "day", "week", "month", "year", "decade"),
        *("dollar", "cent", "euro", "penny", "dime", "nickel", "quarter", "coin", "pence"),
        *("degree", "radian", "unit", "percent", "point", "percentage", "time"),
        *("person", "student", "child", "boy", "girl", "apple", "orange", "book", "page"),
        *("piece", "item", "ball", "marble", "card", "egg", "ticket", "step", "way", "digit"),
        *("mph", "kmh", "km", "cm", "mm", "kg", "mg", "ml", "lb", "oz", "ft", "hr", "sec"),
        *("square", "cubic", "sq", "cu", "joule", "newton", "watt", "volt", "kelvin"),
    )
    | {"foot", "feet", "inch", "people", "children", "per", "pennies", "usd", "eur", "min", "nm"}
)
"""What may follow a number without changing it. No single letters: they may be variables."""
