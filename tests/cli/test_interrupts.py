"""Ctrl-C, SIGTERM, SIGHUP: told at once, never lost, and in --json a document like any error."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAID = {
    signal.SIGINT: "stopping; Ctrl-C again ends at once\n",
    signal.SIGTERM: "stopping\n",
    signal.SIGHUP: "stopping\n",
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
EACH = pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


def command(body: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A program whose one command says "ready" on stderr from `body`."""
    code = f"""
import os, signal, sys, threading, time
import typer
from kvrescue.cli.console import emit_json
from kvrescue.cli.failures import CommandGroup
app = typer.Typer(cls=CommandGroup)
def ready():
    print("ready", file=sys.stderr, flush=True)
@app.callback()
def root(debug: bool = False): pass
@app.command()
def work(json: bool = False):
{textwrap.indent(textwrap.dedent(body), "    ")}
app()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, "work", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what a buffered `readline` reads ahead is lost to `communicate`
    )


def interrupted(process: subprocess.Popen[bytes], *signals: signal.Signals) -> tuple[int, str, str]:
    """Exit code and output of a program that gets signals, one per line it says on stderr."""
    assert process.stderr is not None
    said = b""
    try:
        for sent in signals:
            said += process.stderr.readline()
            process.send_signal(sent)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, output.decode(), (said + errors).decode()


@EACH
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_it_is_told_at_once_and_ends_as_documented(
    sent: signal.Signals, arguments: tuple[str, ...]
) -> None:
    work = """
    try:
        ready()
        threading.Event().wait()
    finally:
        time.sleep(0.2)  # the way out
        print("out", file=sys.stderr, flush=True)
    """
    code, output, errors = interrupted(command(work, *arguments), sent)
    assert (code, errors) == (CODES[sent], f"ready\n{SAID[sent]}out\n")
    if not arguments:
        assert output == ""
        return
    error = json.loads(output)["error"]
    assert error["type"] == {130: "Interrupted", 143: "Terminated", 129: "Terminated"}[code]
    assert sent.name in error["message"]
    assert error["exit_code"] == code


@EACH
def test_where_python_runs_a_text_it_ends_the_same(sent: signal.Signals) -> None:
    """As while dataclasses are made: of a plain KeyboardInterrupt CPython dies, caught or not."""
    work = """
    exec("ready(); threading.Event().wait()")
    """
    assert interrupted(command(work), sent) == (CODES[sent], "", f"ready\n{SAID[sent]}")


@EACH
def test_one_while_the_program_is_imported(sent: signal.Signals) -> None:
    code = f"""
import signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "kvrescue.cli.app":
            exec("signal.raise_signal(signal.{sent.name})")
sys.meta_path.insert(0, Finder())
from kvrescue.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (CODES[sent], "", SAID[sent])


@EACH
def test_one_that_is_swallowed_comes_again(sent: signal.Signals) -> None:
    """Python prints and drops what is raised within a `__del__`; the work would go on for ever."""
    work = """
    class Slow:
        def __del__(self):
            ready()
            for _ in range(100_000):
                time.sleep(0.001)
    Slow()
    Slow()  # waits in the next one when it comes again
    threading.Event().wait()
    """
    process = command(work)
    code, output, errors = interrupted(process, sent)
    assert code == CODES[sent]
    assert (output, errors.replace("ready\n", "")) == ("", SAID[sent])


@EACH
@pytest.mark.parametrize("fate", ["pass", "raise RuntimeError('wrapped')"])
def test_one_that_a_component_hides_still_is_the_end(sent: signal.Signals, fate: str) -> None:
    work = f"""
    try:
        ready()
        threading.Event().wait()
    except BaseException:
        {fate}
    """
    assert interrupted(command(work), sent) == (CODES[sent], "", f"ready\n{SAID[sent]}")


@EACH
def test_what_was_printed_before_stays_one_document(sent: signal.Signals) -> None:
    work = """
    try:
        ready()
        threading.Event().wait()
    except BaseException:
        pass
    emit_json({"done": True})
    """
    code, output, _ = interrupted(command(work, "--json"), sent)
    assert (code, json.loads(output)) == (CODES[sent], {"done": True})


@EACH
def test_a_second_one_ends_it_on_the_spot(sent: signal.Signals) -> None:
    work = """
    try:
        ready()
        threading.Event().wait()
    finally:
        threading.Event().wait()  # a way out that never ends
    """
    code, output, errors = interrupted(command(work, "--json"), sent, sent)
    assert (code, output, errors) == (-sent, "", f"ready\n{SAID[sent]}")


def test_a_reader_that_went_away_changes_nothing() -> None:
    process = command("ready()\nthreading.Event().wait()", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.readline()
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.stderr.read().decode() == SAID[signal.SIGINT]
    assert process.wait(timeout=60) == 130
    process.stderr.close()


def test_somebody_elses_handler_is_left_alone() -> None:
    code = """
import signal, threading
from kvrescue.cli.interrupts import Interruption
signal.signal(signal.SIGTERM, lambda *_: None)
ours = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
with Interruption() as interruption:
    assert signal.getsignal(signal.SIGTERM) is ours[0]
    assert signal.getsignal(signal.SIGINT) is not ours[1]
    signal.raise_signal(signal.SIGTERM)
assert interruption.code is None
assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == ours
def elsewhere():
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is ours[1]
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
