"""kvrescue as a model of EleutherAI's lm-evaluation-harness (docs/lm-eval.md).

    from kvrescue.evaluation.harness import KVRescueLM  # registers the model `kvrescue`
    lm_eval.simple_evaluate(model="kvrescue", model_args="preset=tiny", tasks=[...])

On the command line: `python -m kvrescue.evaluation.harness`, which is lm_eval's own command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvrescue.evaluation.harness.model import KVRescueLM

__all__ = ["KVRescueLM"]


def __getattr__(name: str) -> object:
    """Only whoever asks for the model needs lm_eval.

    Raises:
        DependencyError: it is not installed.
    """
    if name != "KVRescueLM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvrescue.registry import missing_package

    try:
        from kvrescue.evaluation.harness.model import KVRescueLM
    except ModuleNotFoundError as error:
        raise missing_package("the model of lm-evaluation-harness", error) from error
    return KVRescueLM
