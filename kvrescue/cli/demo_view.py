"""A demo's report for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvrescue.cli.console import counted, source_style
from kvrescue.cli.live import one_line
from kvrescue.evaluation.demo import LEAST_GAP, DemoPlan, DemoReport, Example, Row, Setting
from kvrescue.evaluation.demo_data import engines, first_wrong_step
from kvrescue.evaluation.methods import Method
from kvrescue.types import SEPARATOR, CommittedStep, Solution

__all__ = ["show_report"]

_MOST_LINES = 24
_NAMES = ("base", "helper")


def show_report(console: Console, report: DemoReport) -> None:
    """Print the example, the tables and what they mean."""
    _show_example(console, report.example)
    console.print()
    for setting in report.settings:
        helper_only = next(row for row in report.helper_only if row.n == 2 * setting.n)
        console.print(_setting_table(setting, helper_only))
        console.print(_recovery_line(setting))
        console.print()
    if len(report.sweep) > 1:
        console.print(_sweep_table(report.sweep))
        console.print()
    console.print(
        Text(
            "Brackets: 95 % intervals (accuracy: Wilson, recovery: bootstrap over problems). "
            "Tokens: means per problem, all candidates counted. "
            "Recovery: (KV-Rescue - evicted) / (full KV - evicted); "
            f"- where full KV and evicted are less than {LEAST_GAP} points apart.",
            style="dim",
        )
    )
    plan = report.plan
    console.print(
        Text(
            f"{counted(plan.problems, 'test problem')}, seed {plan.seed}, "
            f"measured{_where(plan)} in {report.seconds:.0f} s.",
            style="dim",
        )
    )


def _where(plan: DemoPlan) -> str:
    """The engine, unless it is the usual one."""
    kinds = dict.fromkeys(engines(plan).values())
    return "" if list(kinds) == ["torch"] else f" on {' and '.join(kinds)}"


# -- the example ------------------------------------------------------------------------------


def _show_example(console: Console, example: Example | None) -> None:
    if example is None:
        console.print(
            "Among these problems there is none that evicted base and helper both fail alone and "
            "KV-Rescue solves: try more problems."
        )
        return
    console.print(Text(f"Test problem {example.index}", style="bold"))
    console.print(Text(example.bill.question))
    console.print(Text(f"Right answer: {example.bill.answer}", style="bold"))
    titles: dict[Method, str] = {
        "best_of_n": f"evicted base alone (budget {example.budget})",
        "helper": "helper alone",
        "kv_rescue": "KV-Rescue",
    }
    table = Table(pad_edge=False)
    for method in titles:
        table.add_column(titles[method], ratio=3 if method == "kv_rescue" else 2)
    table.add_row(*(_solution(example, example.solutions[method]) for method in titles))
    console.print(table)
    legend = Text("Steps by ")
    for name in _NAMES:
        legend.append(f"■ {name} ", style=source_style(name, _NAMES))
    legend.append("with the scorer's score; ✗ marks the first wrong step.")
    console.print(legend)


def _solution(example: Example, solution: Solution) -> Text:
    wrong = first_wrong_step(example.bill, solution)
    text = Text()
    for number, step in enumerate(solution.steps):
        if number == _MOST_LINES:
            text.append(f"... {counted(len(solution.steps) - number, 'more step')}\n", style="dim")
            break
        text.append_text(_step(step, wrong=number == wrong))
    right = example.bill.grade(solution.text)
    verdict = "no answer" if solution.answer is None else f"answer {solution.answer}"
    text.append(f"{verdict}: {'right' if right else 'wrong'}", style="green" if right else "red")
    return text


def _step(step: CommittedStep, *, wrong: bool) -> Text:
    text = Text()
    for candidate in step.candidates:
        if candidate.verdict is not None:
            excerpt = one_line(candidate.text, 28)
            text.append(
                f"  {candidate.policy} aborted ({candidate.verdict.detector}): {excerpt}\n",
                style="dim red",
            )
    style = source_style(step.candidate.policy, _NAMES)
    score = "  -  " if step.score is None else f"{step.score:.2f} "
    text.append("✗ " if wrong else "  ", style="bold red").append(score, style="dim")
    text.append(one_line(step.text.removesuffix(SEPARATOR), 60), style=style).append("\n")
    return text


# -- the tables -------------------------------------------------------------------------------


def _setting_table(setting: Setting, helper_only: Row) -> Table:
    table = Table(title=f"N = {setting.n}, budget {setting.budget} + window {setting.window}")
    table.title_justify = "left"
    table.add_column("method")
    for title in ("accuracy %", "base tokens", "helper tokens", "aborted", "helper steps"):
        table.add_column(title, justify="right")
    titles: dict[Method, str] = {
        "full_kv": "full-KV base, 1 candidate",
        "helper": "helper, 1 candidate",
        "best_of_n": f"evicted base, best of {setting.n}",
        "kv_rescue": f"KV-Rescue, {setting.n} + {setting.n}",
    }
    for method, title in titles.items():
        style = "bold" if method == "kv_rescue" else ""
        table.add_row(title, *_cells(setting[method]), style=style)
    table.add_row(
        f"for comparison: helper, best of {helper_only.n}", *_cells(helper_only), style="dim"
    )
    return table


def _cells(row: Row) -> tuple[str, ...]:
    return (
        _accuracy(row),
        f"{row.base_tokens:.0f}" if row.method != "helper" else "-",
        f"{row.helper_tokens:.0f}" if row.helper_share is not None else "-",
        str(row.aborted) if row.method == "kv_rescue" else "-",
        f"{100 * row.helper_share:.0f} %" if row.helper_share is not None else "-",
    )


def _accuracy(row: Row) -> str:
    low, high = row.interval
    return f"{100 * row.accuracy:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def _recovery_line(setting: Setting) -> Text:
    if setting.recovery is None:
        return Text(
            f"Recovery: - (full KV and evicted are less than {LEAST_GAP} points apart here, so "
            "there is little to recover)"
        )
    interval = setting.recovery_interval
    bounds = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"
    line = Text("Recovery ").append(f"{setting.recovery:.2f}", style="bold").append(bounds)
    evicted, rescued = setting["best_of_n"], setting["kv_rescue"]
    if evicted.base_tokens:
        change = 100 * (rescued.base_tokens / evicted.base_tokens - 1)
        line.append(f"; base tokens {change:+.0f} % against evicted best of {setting.n}")
    return line


def _sweep_table(sweep: tuple[Setting, ...]) -> Table:
    table = Table(title="Over budgets, N = 1", title_justify="left")
    table.add_column("budget", justify="right")
    for title in ("full KV %", "evicted %", "KV-Rescue %", "recovery", "helper steps"):
        table.add_column(title, justify="right")
    for setting in sweep:
        share = setting["kv_rescue"].helper_share
        table.add_row(
            str(setting.budget),
            _accuracy(setting["full_kv"]),
            _accuracy(setting["best_of_n"]),
            _accuracy(setting["kv_rescue"]),
            "-" if setting.recovery is None else f"{setting.recovery:.2f}",
            "-" if share is None else f"{100 * share:.0f} %",
        )
    return table
