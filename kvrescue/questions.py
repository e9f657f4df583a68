"""Questions as they come in: checked, and named by their text."""

from __future__ import annotations

from typing import Final

from kvrescue.errors import InputError
from kvrescue.types import Question

__all__ = ["MAX_QUESTION_CHARACTERS", "as_question"]

MAX_QUESTION_CHARACTERS: Final = 100_000


def as_question(question: Question | str) -> Question:
    """A checked question; a text becomes a `Question` with the id that follows from it.

    Raises:
        InputError: it is blank, longer than `MAX_QUESTION_CHARACTERS`, or not valid Unicode.
    """
    text = question.text if isinstance(question, Question) else question
    if not isinstance(text, str):
        raise InputError(f"a question is a text, not {type(text).__name__}")
    if not text.strip():
        raise InputError("the question is empty")
    if len(text) > MAX_QUESTION_CHARACTERS:
        raise InputError(
            f"the question has {len(text)} characters; the limit is {MAX_QUESTION_CHARACTERS}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the question is not valid Unicode: {error.reason}") from error
    return question if isinstance(question, Question) else Question(text)
