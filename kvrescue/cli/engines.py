"""What the commands do about engines: an option, and a look at vLLM before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer

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
    kinds = [section.policy.kind for section in config.proposers.values()]
    if any(kind.startswith("vllm") for kind in (*kinds, config.scorer.kind)):
        from kvrescue.policies.vllm.quiet import quiet_vllm
        from kvrescue.policies.vllm.support import require_installed

        require_installed()
        quiet_vllm()
