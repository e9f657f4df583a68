"""Fenced blocks of a page, and how each kind is run or checked.

A page's blocks share a folder and, in Python, their names. A block with a title is a file of that
name. `<!-- not run: REASON -->` above a block says why it is checked and not run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from kvrescue import plugins
from kvrescue.cli.app import app
from kvrescue.config import ProposerConfig, RescueConfig, load_config
from kvrescue.presets import read
from scripts.docs_site.pages import COPIES, GENERATED, ROOT
from tests.cli.run import Ran

LANGUAGES = ("", "console", "json", "python", "text", "yaml")

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?"
    r"^```(?P<language>[^\s`]*)(?: title=\"(?P<title>[^\"]+)\")?[^\n`]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_QUICK = ("config", "plugins", "plugins show", "cost", "problem", "grade", "bench paper")
"""Commands that are run wherever they stand; `solve` is, too, where its models are tiny."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    title: str
    why_not: str
    """Why it is not run; empty when it is."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> dict[str, str]:
    """Every page with blocks, by its place in the repository (or on the site alone)."""
    files = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    files += [file for file in COPIES.values() if file not in ("README.md", "CHANGELOG.md")]
    found = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    # The hooks' page shows signatures, which are no program.
    found |= {page: make() for page, make in GENERATED.items() if page != "reference/hooks.md"}
    return found


def blocks(page: str, text: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match["language"],
            match["text"],
            match["title"] or "",
            match["why"] or "",
        )
        for match in _BLOCK.finditer(text)
    ]


# -- running ----------------------------------------------------------------------------------


def run(block: Block, scope: dict[str, Any]) -> None:
    """Run or check one block in the working directory.

    Args:
        block: which.
        scope: names of the page's Python.
    """
    if block.title:
        Path(block.title).write_text(block.text, encoding="utf-8")
    if block.language == "python":
        code = compile(block.text, block.where, "exec")
        if not block.why_not and not block.title:
            exec(code, scope)
    elif block.language == "yaml":
        with fresh_plugins():
            check_yaml(block)
    elif block.language == "console":
        for command, output in commands(block.text):
            check_command(command)
            if not block.why_not and is_quick(command):
                with fresh_plugins():
                    printed = run_command(command)
                assert not output or printed == output, f"{block.where}: {command}\n{printed}"


@contextlib.contextmanager
def fresh_plugins() -> Iterator[None]:
    """As in a process of its own, so that one name may be registered in several ways."""
    before, plugins._default = plugins._default, None
    try:
        yield
    finally:
        plugins._default = before


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Files of a page can be imported while it runs, and are forgotten afterwards."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == folder:
                del sys.modules[name]


# -- YAML -------------------------------------------------------------------------------------


def check_yaml(block: Block) -> None:
    """A whole configuration loads; a part of one loads in place of the tiny preset's. Of one that
    cannot be loaded here the names are checked."""
    data = yaml.safe_load(block.text)
    assert isinstance(data, dict), block.where
    if block.why_not:
        assert set(data) <= set(RescueConfig.model_fields), block.where
        return
    if {"proposers", "scorer"} <= set(data):
        load_config(block.title or data)
        return
    whole: dict[str, Any] = yaml.safe_load(read("tiny"))
    known = set(RescueConfig.model_fields)
    if not set(data) <= known:
        assert set(data) <= set(ProposerConfig.model_fields), f"{block.where}: {sorted(data)}"
        data = {"proposers": {"base": data}}
    load_config(_merged(whole, data))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`; a component of another kind replaces what was there."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        same = isinstance(old, dict) and isinstance(value, dict)
        same = same and ("kind" not in value or old.get("kind") == value["kind"])
        found[key] = _merged(old, value) if same else value
    return found


# -- commands ---------------------------------------------------------------------------------


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block with what follows it."""
    text = text.replace("\\\n", "")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def words(command: str) -> list[str]:
    """A command in words, without comments; an ellipsis stands for what is left out."""
    return [word for word in shlex.split(command, comments=True) if word != "..."]


def check_command(command: str) -> None:
    """What a command names is there: program, options, extras, targets, modules."""
    for inner in re.findall(r"\$\(([^)]*)\)", command):
        check_command(inner)
    for part in _split(words(command), "|"):
        part, *_ = _split(part, ">")
        while part and re.match(r"[A-Z_]+=", part[0]):
            part = part[1:]
        program, arguments = part[0], part[1:]
        if program == "kvrescue":
            parsed(arguments)
        elif program == "pip" and arguments[0] == "install":
            _check_extras(arguments[1:])
        elif program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(arguments) <= set(targets), command
        elif program == "python" and arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]), command
        else:
            assert program in ("tail",), f"what is {program!r} in {command!r}?"


def _split(parts: list[str], separator: str) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for part in parts:
        if part == separator:
            found.append([])
        else:
            found[-1].append(part)
    return found


def _check_extras(requirements: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in requirements:
        match = re.fullmatch(r"kvrescue\[([\w,-]+)\]", requirement)
        if match:
            assert set(match[1].split(",")) <= set(project["optional-dependencies"]), requirement


def parsed(arguments: list[str]) -> str:
    """The name of the command that a command line calls; a usage error when there is none."""
    command: Any = typer.main.get_command(app)
    context, rest, name = None, arguments, "kvrescue"
    names: list[str] = []
    if "--version" in arguments:
        return ""
    while True:
        context = command.make_context(name, list(rest), parent=context)
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "commands") or not rest:
            return " ".join(names)
        name, command, rest = command.resolve_command(context, rest)
        names.append(name)


def is_quick(command: str) -> bool:
    """Whether a command is run here."""
    if not command.startswith("kvrescue") or "..." in command:
        return False
    first = _split(_split(words(command), "|")[0], ">")[0]
    called = parsed(first[1:])
    if called == "solve":
        named = [first[place + 1] for place, word in enumerate(first) if word == "--preset"]
        return "--engine" not in first and named in ([], ["tiny"])
    return called in _QUICK


def run_command(command: str) -> str:
    """What a command prints, without spaces at the ends of lines."""
    first, *rest = _split(words(command), "|")
    first, *target = _split(first, ">")
    arguments = [
        re.sub(r"\$\((.*)\)", lambda m: run_command(m[1]).strip(), word) for word in first[1:]
    ]
    ran = Ran(*arguments)
    assert ran.code == 0, f"{command}\n{ran.stderr}"
    lines = [line.rstrip() for line in ran.stdout.splitlines()]
    for program, *options in rest:
        assert program == "tail", command
        lines = lines[int(options[0]) :]
    text = "".join(f"{line}\n" for line in lines)
    for (file,) in target:
        Path(file).write_text(text, encoding="utf-8")
    return text
