"""What of a public module has no docstring; nothing is imported.

Fields of a dataclass may go without one where their names say it all: its signature shows them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scripts.docs_site.public import Module, home, module, names
from scripts.docs_site.text import documented

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def undocumented(known: Module) -> Iterator[str]:
    """Dotted names below the module."""
    texts = documented_at_top(known)
    for name in names(known):
        node = definition(known, name)
        if isinstance(node, ast.ClassDef):
            if not ast.get_docstring(node):
                yield name
            described = set(described_members(known, node))
            if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
                described |= fields(node)
            yield from (f"{name}.{member}" for member in members(node) if member not in described)
        elif isinstance(node, FUNCTIONS):
            if not ast.get_docstring(node):
                yield name
        elif name not in texts:
            yield name


def documented_at_top(known: Module) -> set[str]:
    """Constants and aliases with a text below them."""
    bodies = [known.tree.body]
    for node in known.tree.body:
        if isinstance(node, ast.If):
            bodies += [node.body, node.orelse]
    return {name for body in bodies for name in documented(body)}


def definition(known: Module, name: str) -> ast.stmt | None:
    """The class or function of a name."""
    for node in ast.walk(known.tree):
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and node.name == name:
            return node
    return None


def members(node: ast.ClassDef) -> Iterator[str]:
    """Public methods and attributes that a class declares."""
    for inner in node.body:
        if isinstance(inner, FUNCTIONS):
            found = [inner.name]
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            found = [inner.target.id]
        elif isinstance(inner, ast.Assign):
            found = [target.id for target in inner.targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in found if not name.startswith("_") and name != "model_config")


def fields(node: ast.ClassDef) -> set[str]:
    """What a class annotates."""
    targets = (inner.target for inner in node.body if isinstance(inner, ast.AnnAssign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


def described_members(known: Module, node: ast.ClassDef) -> Iterator[str]:
    """Members with a text, here or in a base of this package."""
    yield from documented(node.body)
    text = ast.get_docstring(node) or ""
    section = text.partition("Attributes:\n")[2]
    yield from re.findall(r"^ +(\w+)(?: \(.*\))?:", section, re.MULTILINE)
    for inner in node.body:
        if isinstance(inner, FUNCTIONS) and ast.get_docstring(inner):
            yield inner.name
    for base in node.bases:
        inner = base.value if isinstance(base, ast.Subscript) else base
        if not isinstance(inner, ast.Name):
            continue
        here = inner.id in set(known.defined())
        where = known if here else module(home(known.name, inner.id))
        found = None if where is None else definition(where, inner.id)
        if where is not None and isinstance(found, ast.ClassDef):
            yield from described_members(where, found)
