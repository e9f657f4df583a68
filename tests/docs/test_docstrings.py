"""What counts as undocumented."""

from __future__ import annotations

import ast

from scripts.docs_site.public import Module
from tests.docs.docstrings import undocumented

SOURCE = """
__all__ = ["A", "B", "C", "D", "told", "untold", "NUMBER", "OTHER"]

NUMBER = 1
"A number."
OTHER = 2

def told():
    "Told."

def untold(): ...

class A:
    "A base."
    kind: str = ""
    "Told here."
    silent: int = 0

    def method(self):
        "Told here."

    def bare(self): ...

    def _own(self): ...

class B(A):
    "Inherits what is said of its members."
    kind = "b"

    def method(self): ...

@dataclass(frozen=True)
class C:
    "Its signature shows the fields."
    x: int

    @property
    def y(self): ...

class D: ...

def _private(): ...
"""


def test_undocumented() -> None:
    found = list(undocumented(Module("m", ast.parse(SOURCE))))
    assert sorted(found) == ["A.bare", "A.silent", "C.y", "D", "OTHER", "untold"]
