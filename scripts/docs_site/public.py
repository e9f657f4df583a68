"""What is public: the modules whose `__all__` is documented, by the page of the API reference.

A name that is not in `__all__` of one of these modules may change without notice.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["PACKAGES", "ROOMS", "Module", "Room", "home", "module", "modules", "names"]


@dataclass(frozen=True, slots=True)
class Room:
    """One page of the API reference."""

    title: str
    about: str
    modules: tuple[str, ...]


ROOMS: Final[Mapping[str, Room]] = {
    "rescue": Room(
        "Rescue",
        "Solving questions: the front door, the loop behind it, and its configuration.",
        (
            "kvrescue.pipeline",
            "kvrescue.views",
            "kvrescue.selector",
            "kvrescue.rules",
            "kvrescue.sampling",
            "kvrescue.config",
            "kvrescue.engines",
            "kvrescue.parts",
            "kvrescue.presets",
        ),
    ),
    "values": Room(
        "Values and events",
        "What travels between the parts, and what is told of a run.",
        ("kvrescue.types", "kvrescue.events"),
    ),
    "policies": Room(
        "Policies",
        "What proposes steps.",
        (
            "kvrescue.policies.base",
            "kvrescue.policies.torch",
            "kvrescue.policies.vllm.policy",
            "kvrescue.policies.specs",
        ),
    ),
    "evictors": Room(
        "Evictors",
        "What decides which cached entries stay.",
        (
            "kvrescue.evictors.base",
            "kvrescue.evictors.rkv",
            "kvrescue.evictors.snapkv",
            "kvrescue.evictors.h2o",
            "kvrescue.evictors.streaming_llm",
            "kvrescue.evictors.random",
            "kvrescue.evictors.none",
            "kvrescue.evictors.tracking",
        ),
    ),
    "kernels": Room(
        "Kernels",
        "Whether kernels are used, Triton's or numba's.",
        ("kvrescue.kernels",),
    ),
    "detectors": Room(
        "Detectors",
        "What aborts degenerate candidates.",
        (
            "kvrescue.detectors.base",
            "kvrescue.detectors.entropy",
            "kvrescue.detectors.gzip",
            "kvrescue.detectors.ngram",
            "kvrescue.detectors.bank",
            "kvrescue.detectors.context",
        ),
    ),
    "scorers": Room(
        "Scorers",
        "What ranks candidates.",
        (
            "kvrescue.scorers.base",
            "kvrescue.scorers.qwen_prm",
            "kvrescue.scorers.vllm_prm",
            "kvrescue.scorers.http_prm",
            "kvrescue.scorers.likelihood",
            "kvrescue.scorers.specs",
        ),
    ),
    "plugins": Room(
        "Plugins",
        "How components and observers are added.",
        ("kvrescue.hookspecs", "kvrescue.plugins", "kvrescue.registry", "kvrescue.options"),
    ),
    "testing": Room(
        "Testing and replay",
        "Laws for your own components, and runs that are replayed without models.",
        (
            "kvrescue.testing",
            "kvrescue.testing.fakes",
            "kvrescue.testing.streams",
            "kvrescue.testing.detector_laws",
            "kvrescue.testing.pools",
            "kvrescue.testing.scorer_laws",
            "kvrescue.testing.selector_laws",
            "kvrescue.replay",
            "kvrescue.calibration",
        ),
    ),
    "errors": Room("Errors", "Every failure that is raised on purpose.", ("kvrescue.errors",)),
    "cost": Room(
        "Cost", "The paper's equations of memory and compute.", ("kvrescue.cost", "kvrescue.shapes")
    ),
    "evaluation": Room(
        "Evaluation",
        "Problems, grading, recorded runs, and kvrescue as a model of lm-evaluation-harness.",
        (
            "kvrescue.evaluation.bill",
            "kvrescue.evaluation.grading.pool",
            "kvrescue.evaluation.grading.grade",
            "kvrescue.evaluation.grading.exact",
            "kvrescue.evaluation.grading.disagreements",
            "kvrescue.evaluation.runs.folder",
            "kvrescue.evaluation.runs.record",
            "kvrescue.evaluation.trajectories.data",
            "kvrescue.evaluation.harness.model",
        ),
    ),
}
"""By the page's name. Modules that are not there (yet) are left out."""

PACKAGES: Final = (
    "kvrescue",
    "kvrescue.policies",
    "kvrescue.evictors",
    "kvrescue.detectors",
    "kvrescue.scorers",
    "kvrescue.evaluation.grading",
    "kvrescue.evaluation.harness",
)
"""Where names are imported from; each is documented at its home, in one of the modules above."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module as it is written; nothing is imported."""

    name: str
    tree: ast.Module

    @property
    def names(self) -> tuple[str, ...]:
        """Its `__all__`, in the order in which the names are defined."""
        listed: list[str] = []
        for node in self.tree.body:
            targets = _targets(node)
            if "__all__" in targets and isinstance(node, ast.Assign | ast.AnnAssign):
                listed = list(ast.literal_eval(node.value)) if node.value else []
        places = {name: place for place, name in enumerate(self.defined())}
        return tuple(sorted(listed, key=lambda name: places.get(name, -1)))

    def defined(self) -> Iterator[str]:
        """Names that are defined here and not imported."""
        for node in _statements(self.tree.body):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            yield from _targets(node)

    def imported(self, name: str) -> str | None:
        """The module that a name is imported from."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and any(
                (alias.asname or alias.name) == name for alias in node.names
            ):
                return node.module
        return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those at the top of a module, also below an `if`."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])


def _targets(node: ast.stmt) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@functools.cache
def module(name: str) -> Module | None:
    """A module of this package, None when there is none of that name."""
    try:
        found = importlib.util.find_spec(name.partition(".")[0])
    except ModuleNotFoundError:
        return None
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0], *name.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return Module(name, ast.parse(file.read_text(encoding="utf-8")))
    return None


def modules(room: Room) -> tuple[Module, ...]:
    """The modules of a room that are there, those of its packages included."""
    found: list[Module] = []
    for name in room.modules:
        known = module(name)
        if known is None:
            continue
        found.append(known)
        homes = dict.fromkeys(home(name, each) for each in known.names)
        inner = [where for where in homes if where.startswith(f"{name}.")]
        found += [known for where in inner if (known := module(where)) is not None]
    return tuple(found)


def names(known: Module) -> tuple[str, ...]:
    """Public names that are defined in a module."""
    here = set(known.defined())
    return tuple(name for name in known.names if name in here)


def home(where: str, name: str) -> str:
    """The module in which a name that `where` has is defined."""
    known = module(where)
    if known is None or name in set(known.defined()):
        return where
    source = known.imported(name)
    return where if source is None else home(source, name)
