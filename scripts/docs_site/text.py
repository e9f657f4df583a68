"""Docstrings of attributes, and Markdown tables."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["attribute_docs", "cell", "documented", "one_line", "table"]


@functools.cache
def attribute_docs(cls: type) -> Mapping[str, str]:
    """What is written below the attributes of a class, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):
            continue
        (node,) = ast.parse(textwrap.dedent(source)).body
        if isinstance(node, ast.ClassDef):
            found |= documented(node.body)
    return found


def documented(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Names that are assigned to and followed by a text, with the text."""
    found = {}
    for node, below in itertools.pairwise(body):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found |= dict.fromkeys(names, inspect.cleandoc(text.value))
    return found


def one_line(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def cell(text: str) -> str:
    """A text for a table."""
    return one_line(text).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, nothing when there are no rows."""
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    if not lines:
        return ""
    top = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*top, *lines, ""])
