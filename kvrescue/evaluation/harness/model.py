"""The model `kvrescue` of lm-evaluation-harness. Importing this module registers it.

Source of the interface: lm_eval 0.4, `lm_eval/api/model.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

import kvrescue
from kvrescue.config import config_hash
from kvrescue.errors import ConfigError, KVRescueError, located
from kvrescue.evaluation.harness.arguments import ModelArgs, from_json
from kvrescue.evaluation.harness.generation import GenerationKwargs, cut
from kvrescue.evaluation.methods import Indifferent, needs_no_scorer
from kvrescue.parts import Parts
from kvrescue.pipeline import Rescue, close_parts
from kvrescue.questions import as_question
from kvrescue.rules import Limits
from kvrescue.sampling import Sampling
from kvrescue.types import Question, Solution

__all__ = ["KVRescueLM"]

# A child of lm_eval's own logger, so that its command line shows it at its level.
_log: Final = logging.getLogger("lm_eval.models.kvrescue")

_DEVICES: Final = (None, "cuda:0")
"""What lm_eval hands over when nothing was said."""


@dataclass(frozen=True)
class _Asked:
    """One request, read."""

    task: str | None
    doc: int | None
    question: Question
    kwargs: GenerationKwargs
    sampling: Sampling
    limits: Limits

    @property
    def where(self) -> str:
        return _where(self.task, self.doc)


@register_model("kvrescue")
class KVRescueLM(LM):  # type: ignore[misc]
    """Answers `generate_until` tasks with a composition of policies.

    All problems of a call run in one process, `concurrency` of the configuration at once. Policies
    apply their own chat template to a request's whole context, few-shot examples included.

    Args:
        batch_size: lm_eval passes it to every model, like the next two; the configuration says
            them here, so that they are not used. A value that is not lm_eval's default is logged.
        max_batch_size: not used.
        device: not used.
        model_args: see `ModelArgs`.

    Raises:
        ConfigError: a wrong argument or configuration, or a launcher started several processes.
        ModelLoadError: a checkpoint cannot be loaded.
        DependencyError: a component needs a package that is not installed.
    """

    def __init__(
        self,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **model_args: Any,
    ) -> None:
        super().__init__()
        _refuse_several_processes()
        for name, value, unsaid, instead in (
            ("batch_size", batch_size, (None, 1, "1"), "concurrency=P"),
            ("max_batch_size", max_batch_size, (None,), "concurrency=P"),
            ("device", device, _DEVICES, "proposers.base.policy.device=cpu"),
        ):
            if value not in unsaid:
                _log.warning("%s = %r is not used: say set=%s instead", name, value, instead)
        self.args = ModelArgs(**model_args)
        self.config = self.args.rescue_config()
        self._parts = Parts()
        if needs_no_scorer(self.config):
            self._parts.scorers.append((self.config.scorer, Indifferent()))
        try:
            rescue = Rescue.from_config(self.config, parts=self._parts)  # loads everything now
        except BaseException:
            close_parts(self._parts)
            raise
        self._finish = weakref.finalize(self, _close, rescue, self._parts)
        self._finish.atexit = False  # the background loop has an exit handler of its own

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> Self:
        """See `LM`; a JSON object is understood, too."""
        found = from_json(arg_string)
        if found is None:
            return super().create_from_arg_string(arg_string, additional_config)  # type: ignore[no-any-return]
        return cls.create_from_arg_obj(found, additional_config)  # type: ignore[no-any-return]

    def get_model_info(self) -> dict[str, Any]:
        """What lm_eval writes next to the results: the resolved configuration, without keys."""
        return {
            "kvrescue_version": kvrescue.__version__,
            "kvrescue_config": self.config.model_dump(mode="json"),
            "kvrescue_config_hash": config_hash(self.config),
            "kvrescue_sampling": self.args.sampling,
        }

    # -- requests -----------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The solutions' texts up to the first stop string, in the order of the requests.

        A request that occurs several times (`repeats`) is sampled anew each time; different
        requests with the same text have the same answer.

        Raises:
            ConfigError: a request asks for what cannot be done; see `GenerationKwargs.applied`.
            KVRescueError: a problem failed, unless on_error is `degrade`; the message names its
                task and document.
        """
        asked = self._read(requests)
        self._tell_settings(asked)
        answers = [""] * len(asked)
        counts: Counter[str] = Counter()
        with (
            tqdm(total=len(asked), desc="kvrescue: generate_until", disable=disable_tqdm) as bar,
            contextlib.closing(self._solved(asked)) as outcomes,
        ):
            for place, outcome in outcomes:
                bar.update()
                one = asked[place]
                if isinstance(outcome, KVRescueError):
                    if self.args.on_error == "raise":
                        raise located(one.where, outcome)
                    counts["failed"] += 1
                    _log.warning("no answer: %s: %s", one.where, outcome)
                    continue
                counts["degraded"] += bool(outcome.degradations)
                answers[place] = cut(outcome.text, one.kwargs.until)
                self.cache_hook.add_partial("generate_until", requests[place].args, answers[place])
        _log.log(
            logging.WARNING if counts.total() else logging.INFO,
            "%d requests answered, %d of them degraded; %d failed and are answered with nothing",
            len(asked) - counts["failed"],
            counts["degraded"],
            counts["failed"],
        )
        return answers

    def loglikelihood(self, requests: Sequence[Instance]) -> NoReturn:
        """Refused.

        Raises:
            ConfigError: always.
        """
        _refuse_likelihoods(requests)

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> NoReturn:
        """Refused.

        Raises:
            ConfigError: always.
        """
        _refuse_likelihoods(requests)

    def _read(self, requests: Sequence[Instance]) -> list[_Asked]:
        """The requests, checked before any work is done."""
        seen: Counter[int] = Counter()
        asked = []
        for request in requests:
            try:
                text, given, *_ = request.args
                kwargs = GenerationKwargs(**given)
                sampling, limits = kwargs.applied(self.config, self.args.sampling)
                question = as_question(text)
            except KVRescueError as error:
                raise located(_where(request.task_name, request.doc_id), error) from error
            if repeat := seen[id(request)]:
                question = Question(question.text, f"{question.id}/{repeat}")
            seen[id(request)] += 1
            asked.append(
                _Asked(request.task_name, request.doc_id, question, kwargs, sampling, limits)
            )
        return asked

    def _tell_settings(self, asked: Sequence[_Asked]) -> None:
        """Once for each task and setting: how it is solved, and what is not done as it says."""
        for task, kwargs, sampling, limits in dict.fromkeys(
            (one.task, one.kwargs, one.sampling, one.limits) for one in asked
        ):
            _log.info("task %r: %s, %s", task, sampling.model_dump(), limits.model_dump())
            if len(kwargs.lengths) > 1:
                _log.warning("task %r: of %s the first counts", task, kwargs.lengths)
            if kwargs.sampling and self.args.sampling == "config":
                _log.warning(
                    "task %r: %s is not applied, sampling is the configuration's (sampling=config)",
                    task,
                    kwargs.sampling,
                )

    def _solved(
        self, asked: Sequence[_Asked]
    ) -> Generator[tuple[int, Solution | KVRescueError], None, None]:
        """Outcomes by place, as they come; equal questions are solved once."""
        groups: dict[tuple[Sampling, Limits], dict[Question, list[int]]] = {}
        for place, one in enumerate(asked):
            group = groups.setdefault((one.sampling, one.limits), {})
            group.setdefault(one.question, []).append(place)
        for (sampling, limits), places in groups.items():
            config = self.config.model_copy(update={"sampling": sampling, "limits": limits})
            with (
                Rescue.from_config(config, parts=self._parts) as rescue,
                contextlib.closing(rescue.solve_each(places)) as outcomes,  # type: ignore[type-var]
            ):
                for question, outcome in outcomes:
                    for place in places[question]:
                        yield place, outcome

    # -- chat templates -----------------------------------------------------------------------

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> NoReturn:
        """Refused: the policies apply their own.

        Raises:
            ConfigError: always.
        """
        _refuse_templates()

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Empty. Raises ConfigError where one is asked for."""
        if chat_template:
            _refuse_templates()
        return ""

    @property
    def tokenizer_name(self) -> str:
        """Asked for with chat templates only. Raises ConfigError."""
        _refuse_templates()

    # -- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the models; closing twice is fine. It also happens when the object goes away."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(rescue: Rescue, parts: Parts) -> None:
    try:
        rescue.close()
    finally:
        close_parts(parts)


def _where(task: str | None, doc: int | None) -> str:
    return f"task {task!r}, doc {doc}"


def _refuse_several_processes(environment: Mapping[str, str] = os.environ) -> None:
    size = environment.get("WORLD_SIZE", "1")
    if size.isdecimal() and int(size) > 1:
        raise ConfigError(
            f"WORLD_SIZE = {size}: kvrescue batches its problems in one process, and each of these "
            "would load the models and solve everything: start it without accelerate or torchrun "
            "(vLLM: set=proposers.base.policy.options.tensor_parallel_size=G), or unset WORLD_SIZE"
        )


def _refuse_likelihoods(requests: Sequence[Instance]) -> NoReturn:
    tasks = ", ".join(sorted({str(request.task_name) for request in requests})) or "none"
    raise ConfigError(
        f"tasks that compare likelihoods ({tasks}): a composition of policies has no single "
        "likelihood of a given text, as each step comes from another policy and is chosen by a "
        "scorer. Choose tasks with `output_type: generate_until` (gsm8k, minerva_math, ...)"
    )


def _refuse_templates() -> NoReturn:
    raise ConfigError(
        "apply_chat_template: every policy applies the chat template of its own model, so that "
        "the context would be templated twice: leave --apply_chat_template out"
    )
