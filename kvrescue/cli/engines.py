"""What the commands do about engines: an option, and a look at vLLM before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer
from rich.text import Text

from kvrescue.cli.console import messages

if TYPE_CHECKING:
    from kvrescue.config import RescueConfig
    from kvrescue.engines import Engine

__all__ = ["EngineName", "chosen_engine", "prepare_engine"]

EngineName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="torch|vllm",
        help="What the models run on, whatever the configuration says; --set comes after it.",
    ),
]


def chosen_engine(name: str | None) -> Engine | None:
    """The option for `load_config`, which refuses a wrong name."""
    return cast("Engine | None", name)


def prepare_engine(config: RescueConfig) -> None:
    """Where a configuration uses vLLM: find out whether it is there, and keep its log to itself.

    Raises:
        DependencyError: vLLM is missing, or of a version that is not supported.
    """
    policies = [section.policy.kind for section in config.proposers.values()]
    kinds = [kind for kind in (*policies, config.scorer.kind) if kind.startswith("vllm")]
    if kinds:
        from kvrescue.policies.vllm.quiet import quiet_vllm, usable_cache
        from kvrescue.policies.vllm.support import require_installed

        require_installed(kinds[0])
        quiet_vllm()
        if note := usable_cache():
            messages().print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
