"""Every hook, event, field, command, option, exit code and public name is documented."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from kvrescue import plugins
from kvrescue.cli.app import app
from kvrescue.cli.failures import exit_codes
from kvrescue.cli.reference import reference
from kvrescue.events import as_dict
from kvrescue.hooks import HOOKS
from kvrescue.registry import KINDS
from scripts.docs_site.api import api_pages
from scripts.docs_site.configuration import SECTIONS, components, configuration
from scripts.docs_site.events import EVENTS, event_name, events, values
from scripts.docs_site.failures import error_classes, failures
from scripts.docs_site.hooks import hook_specs, hooks, signature
from scripts.docs_site.pages import ROOT
from scripts.docs_site.public import PACKAGES, ROOMS, Module, home, module, modules, names
from scripts.docs_site.text import attribute_docs, cell, one_line
from tests.docs.docstrings import undocumented

PUBLIC = {known.name: known for room in ROOMS.values() for known in modules(room)}


def section(page: str, title: str) -> str:
    """What stands below a heading, up to the next one of its rank or above."""
    found = re.search(
        rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |^### |\Z)", page, re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"no heading {title!r}"
    return found[2]


class TestHooks:
    def test_all_are_there(self) -> None:
        assert set(hook_specs()) == set(HOOKS)

    @pytest.mark.parametrize("name", hook_specs())
    def test_signature_and_text(self, name: str) -> None:
        function = hook_specs()[name]
        arguments = ", ".join(inspect.signature(function).parameters)
        found = section(hooks(), f"{name}({arguments})")
        assert f"def {name}{signature(function)}: ..." in found
        assert one_line(inspect.getdoc(function) or "?") in one_line(found)

    def test_signatures_are_the_real_ones(self) -> None:
        def hook(self: object, register: plugins.hookspecs.Register, count: int = 3) -> None: ...

        assert signature(hook) == "(register: plugins.hookspecs.Register, count: int = 3) -> None"

    @pytest.mark.parametrize("name", hook_specs())
    def test_there_is_an_example(self, name: str) -> None:
        files = [*(ROOT / "docs" / "plugins").glob("*.md"), *(ROOT / "examples").glob("*.py")]
        assert any(f"\ndef {name}(" in path.read_text() for path in files)


class TestEvents:
    @pytest.mark.parametrize("event", EVENTS)
    def test_fields(self, event: type[Any]) -> None:
        check_fields(section(events(), event_name(event)), event)

    @pytest.mark.parametrize("value", [v for v in values(EVENTS) if dataclasses.is_dataclass(v)])
    def test_fields_of_values(self, value: type[Any]) -> None:
        check_fields(section(events(), value.__name__), value)

    def test_names_are_those_of_traces(self) -> None:
        for event in EVENTS:
            blank = object.__new__(event)
            for field in dataclasses.fields(event):
                object.__setattr__(blank, field.name, None)
            assert as_dict(blank)["event"] == event_name(event)

    def test_every_value_inside_is_found(self) -> None:
        found = {value.__name__ for value in values(EVENTS)}
        assert {"Question", "Candidate", "Verdict", "StopReason", "Solution", "TokenUse"} <= found


def check_fields(found: str, value: type[Any]) -> None:
    docs = attribute_docs(value)
    for field in dataclasses.fields(value):
        assert docs.get(field.name), f"{value.__name__}.{field.name} says nothing"
        row = f"| `{field.name}` | {cell(f'`{field.type}`')} | {cell(docs[field.name])}"
        assert row in found


def configured() -> Iterator[tuple[str, type[BaseModel]]]:
    yield from SECTIONS.items()
    for kind in KINDS:
        for name, component in components(kind).items():
            yield f"{kind} `{name}`", component


class TestConfiguration:
    @pytest.mark.parametrize(("title", "model"), list(configured()))
    def test_fields(self, title: str, model: type[BaseModel]) -> None:
        found = section(configuration(), title)
        docs = attribute_docs(model)
        for name, field in model.model_fields.items():
            rows = re.findall(rf"^\| `{name}` \| (.*)$", found, re.MULTILINE)
            assert len(rows) == 1, name
            expected, default, meaning = (
                part.strip(" |") for part in re.split(r"(?<!\\) \| ", rows[0])
            )
            assert meaning == cell(docs[name]), name
            assert meaning, name
            assert expected, name
            assert (default == "required") == field.is_required(), name

    def test_every_component_that_is_registered(self) -> None:
        page = configuration()
        for entry in plugins.Plugins().registry.entries():
            assert f"### {entry.kind} `{entry.name}`" in page

    def test_limits_and_defaults_are_told(self) -> None:
        found = section(configuration(), "sampling")
        assert "| `top_p` | a number greater than 0 and at most 1 | `0.95` |" in found
        assert '| `separator` | a text that is not empty | `"\\n\\n"` |' in found


def commands(group: Any = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")


COMMANDS = dict(commands())


class TestCommandLine:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_options(self, name: str) -> None:
        found = section(reference(), f"kvrescue {name}")
        for parameter in COMMANDS[name].params:
            if parameter.name == "help":
                continue
            assert parameter.help, f"{name}: {parameter.name} says nothing"
            spelled = (
                parameter.opts if parameter.opts[0].startswith("-") else [parameter.name.upper()]
            )
            for spelling in (*spelled, *parameter.secondary_opts):
                assert f"`{spelling}`" in found
            assert cell(parameter.help) in found


class TestExitCodes:
    @pytest.mark.parametrize("error", error_classes())
    def test_errors(self, error: type[Any]) -> None:
        text = cell(inspect.getdoc(error) or "")
        assert text
        row = f"| `{error.__mro__[1].__name__}` | {error.exit_code} | {text} |"
        assert f"[`{error.__name__}`][kvrescue.errors.{error.__name__}] {row}" in failures()

    @pytest.mark.parametrize("code", exit_codes())
    def test_codes(self, code: int) -> None:
        row = f"| {code} | {cell(exit_codes()[code])} |"
        assert row in failures()
        assert row in (ROOT / "docs" / "cli.md").read_text()


class TestPublicNames:
    @pytest.mark.parametrize("known", PUBLIC.values(), ids=PUBLIC)
    def test_all_have_a_text(self, known: Module) -> None:
        assert list(undocumented(known)) == []

    @pytest.mark.parametrize("package", [p for p in PACKAGES if module(p)])
    def test_what_packages_offer_is_public_where_it_is_defined(self, package: str) -> None:
        known = module(package)
        assert known is not None
        for name in known.names:
            where = home(package, name)
            assert where == package or name in names(PUBLIC[where]), f"{where}.{name}"

    @pytest.mark.parametrize("name", PUBLIC)
    def test_pages_hold_every_name(self, name: str) -> None:
        pages = "\n".join(api_pages().values())
        listed = re.search(rf"^::: {re.escape(name)}\n(?:    .*\n)+", pages + "\n", re.MULTILINE)
        found = set(re.findall(r"^        - (\w+)$", listed[0], re.MULTILINE)) if listed else set()
        assert found == set(names(PUBLIC[name]))

    def test_a_module_that_is_missing_is_left_out(self) -> None:
        assert module("kvrescue.nowhere") is None
        assert module("nowhere.at_all") is None

    def test_homes(self) -> None:
        assert home("kvrescue", "Rescue") == "kvrescue.pipeline"
        assert home("kvrescue.selector", "Proposer") == "kvrescue.views"
        assert home("kvrescue.policies", "Sampling") == "kvrescue.sampling"
