"""Every way to ask wrongly: a typed error on one line, a documented exit code, no stack trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrescue.cli.failures import exit_codes
from kvrescue.questions import MAX_QUESTION_CHARACTERS
from tests.cli.run import Ran, fails


class TestQuestions:
    @pytest.mark.parametrize("question", ["", "   ", "\n\n"])
    def test_empty(self, config: str, question: str) -> None:
        assert "empty" in fails(3, "InputError", "solve", question, "--config", config)

    @pytest.mark.parametrize("stdin", [None, "", "  \n"])
    def test_none_at_all(self, config: str, stdin: str | None) -> None:
        assert "no question" in fails(3, "InputError", "solve", "--config", config, stdin=stdin)

    def test_too_many_characters(self, config: str, tmp_path: Path) -> None:
        text = "x" * (MAX_QUESTION_CHARACTERS + 1)
        assert "limit" in fails(3, "InputError", "solve", text, "--config", config)
        assert "limit" in fails(3, "InputError", "solve", "-", "--config", config, stdin=text * 2)
        file = tmp_path / "long.txt"
        file.write_text(text * 3)
        assert "limit" in fails(3, "InputError", "solve", "-f", str(file), "--config", config)

    def test_longer_than_the_context(self, config: str) -> None:
        arguments = ["solve", "q", "--config", config, "--set", "limits.max_context=3"]
        assert "context" in fails(3, "InputError", *arguments)

    def test_file_that_cannot_be_read(self, config: str, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing.txt")
        assert missing in fails(3, "InputError", "solve", "-f", missing, "--config", config)
        folder = str(tmp_path)
        assert folder in fails(3, "InputError", "solve", "-f", folder, "--config", config)

    def test_file_that_is_no_text(self, config: str, tmp_path: Path) -> None:
        file = tmp_path / "binary"
        file.write_bytes(b"\xff\xfe\x00\x80")
        message = fails(3, "InputError", "solve", "-f", str(file), "--config", config)
        assert "UTF-8" in message

    def test_standard_input_that_is_no_text(self, config: str) -> None:
        message = fails(3, "InputError", "solve", "--config", config, stdin=b"\xff\xfe\x80")
        assert "UTF-8" in message

    def test_a_mark_at_the_start_of_a_file_is_not_asked(self, config: str, tmp_path: Path) -> None:
        file = tmp_path / "from_windows.txt"
        file.write_bytes(b"\xef\xbb\xbfhow many?")
        asked = Ran("solve", "-f", str(file), "--config", config, "--json")
        assert asked.json["question"]["text"] == "how many?"

    def test_nor_is_one_on_standard_input(self, config: str) -> None:
        asked = Ran("solve", "--config", config, "--json", stdin=b"\xef\xbb\xbfhow many?")
        assert asked.json["question"]["text"] == "how many?"

    def test_nor_does_one_spoil_a_configuration(self, config: str) -> None:
        marked = Path(config)
        plain = Ran("config", "--config", config).stdout
        marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes())
        assert Ran("config", "--config", config).stdout == plain

    def test_the_longest_one(self, config: str, tmp_path: Path) -> None:
        file = tmp_path / "longest.txt"
        file.write_text("x" * MAX_QUESTION_CHARACTERS + "\n")
        arguments = ["solve", "-f", str(file), "--config", config]
        assert Ran(*arguments, "--set", "limits.max_steps=1").code == 0

    def test_a_long_one_for_a_real_tokenizer(self) -> None:
        """One line, and none of transformers' own about it."""
        message = fails(3, "InputError", "solve", "x" * 5000)
        assert "context of 1024" in message


class TestConfigurations:
    def test_unknown_preset(self) -> None:
        message = fails(4, "UnknownNameError", "solve", "q", "--preset", "tinny")
        assert "did you mean 'tiny'" in message

    def test_file_that_is_not_there(self) -> None:
        assert "cannot be read" in fails(4, "ConfigError", "config", "--config", "missing.yaml")

    def test_folder(self, tmp_path: Path) -> None:
        assert "cannot be read" in fails(4, "ConfigError", "config", "--config", str(tmp_path))

    def test_binary_file(self, tmp_path: Path) -> None:
        file = tmp_path / "binary"
        file.write_bytes(bytes(range(256)))
        assert "cannot be read" in fails(4, "ConfigError", "config", "--config", str(file))

    @pytest.mark.parametrize("text", ["a: [", "just words", "- 1\n- 2", "", "a: 1\na: 2"])
    def test_no_configuration(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "odd.yaml"
        file.write_text(text)
        assert str(file) in fails(4, "ConfigError", "config", "--config", str(file))

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            (
                "proposers.base.candidates=0",
                "candidates = 0: expected a whole number from 1 to 4096",
            ),
            ("limits.max_steps=0", "max_steps = 0: expected a whole number of at least 1"),
            ("limits.max_context=-1", "max_context = -1: expected a whole number of at least 1"),
            ("limits=3", "limits = 3: expected a section with the fields max_steps,"),
            ("proposers=[]", "proposers = []: expected a section of named entries"),
            ("proposers.base.policy.delay=true", "delay = true: expected a number"),
            ("limits=" + "[" * 3000, "nested too deeply"),
            ("nonsense", "should look like"),
            ("seed=[", "not YAML"),
        ],
    )
    def test_bad_values(self, config: str, override: str, expected: str) -> None:
        message = fails(4, "ConfigError", "solve", "q", "--config", config, "--set", override)
        assert expected in message

    @pytest.mark.parametrize(
        ("override", "nearest"),
        [
            ("limits.max_step=3", "max_steps"),
            ("proposers.bse.candidates=1", "base"),
            ("scorer.kind=fakee", "fake"),
            ("proposers.base.policy.dely=1", "delay"),
        ],
    )
    def test_unknown_names(self, config: str, override: str, nearest: str) -> None:
        message = fails(4, "UnknownNameError", "config", "--config", config, "--set", override)
        assert f"did you mean '{nearest}'" in message

    @pytest.mark.parametrize("budget", [0, -3])
    def test_budget_of_nothing(self, budget: int) -> None:
        override = f"proposers.base.policy.evictor.budget={budget}"
        assert "budget" in fails(4, "ConfigError", "config", "--set", override)

    def test_unreachable_detector(self) -> None:
        override = "proposers.base.detectors.entropy.threshold=7.0"
        assert "7" in fails(4, "DetectorError", "solve", "q", "--set", override)

    def test_every_fault_has_its_line(self, config: str) -> None:
        arguments = ["--set", "seed=x", "--set", "limits=3"]
        message = fails(4, "ConfigError", "config", "--config", config, *arguments)
        assert len(message.splitlines()) == 2


class TestDemo:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("--n", "0"),
            ("--n", "-1"),
            ("--problems", "0"),
            ("--problems", "1000000"),
            ("--budget", "0"),
            ("--budget", "16", "--budget", "-2"),
            ("--workers", "0"),
            ("--set", "proposers.base.policy.evictor=null"),
        ],
    )
    def test_numbers_out_of_range(self, arguments: tuple[str, ...]) -> None:
        fails(4, "ConfigError", "demo", *arguments)

    def test_problem_before_the_first(self) -> None:
        assert "numbered from 0" in fails(4, "ConfigError", "problem", "--index", "-1")


class TestPlugins:
    def test_module_that_is_not_there(self) -> None:
        message = fails(5, "PluginError", "plugins", "--plugin", "no_such_module")
        assert "cannot be imported" in message

    def test_misspelt_hook(self, tmp_path: Path) -> None:
        file = tmp_path / "misspelt.py"
        file.write_text("def kvrescue_register_detector(register): ...\n")
        message = fails(5, "PluginError", "plugins", "--plugin", str(file))
        assert "did you mean 'kvrescue_register_detectors'" in message

    def test_unknown_component(self) -> None:
        message = fails(4, "UnknownNameError", "plugins", "show", "detector", "gzipp")
        assert "did you mean 'gzip'" in message
        message = fails(4, "UnknownNameError", "plugins", "show", "detectors", "gzip")
        assert "did you mean 'detector'" in message


class TestRuns:
    def test_trace_that_cannot_be_written(self, config: str, tmp_path: Path) -> None:
        path = str(tmp_path / "no" / "trace.jsonl")
        message = fails(4, "ConfigError", "solve", "q", "--config", config, "--trace", path)
        assert "cannot be written" in message
        message = fails(
            4, "ConfigError", "solve", "q", "--config", config, "--trace", str(tmp_path)
        )
        assert "cannot be written" in message

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_trace_on_a_full_disk(self, config: str) -> None:
        arguments = ["solve", "q", "--config", config, "--trace", "/dev/full"]
        assert "No space left" in fails(4, "ConfigError", *arguments)

    def test_policy_that_fails(self, config: str) -> None:
        override = "proposers.base.policy.broken=true"
        message = fails(8, "PolicyError", "solve", "q", "--config", config, "--set", override)
        assert "on fire" in message

    @pytest.mark.parametrize("score", [".nan", "1.5"])
    def test_scores_that_are_none(self, config: str, score: str) -> None:
        override = f"scorer.wrong={score}"
        fails(9, "ScorerError", "solve", "q", "--config", config, "--set", override)

    def test_weights_that_are_not_there(self, tmp_path: Path) -> None:
        override = f"proposers.base.policy.model={tmp_path / 'nothing'}"
        assert "nothing" in fails(6, "ModelLoadError", "solve", "q", "--set", override)

    def test_weights_that_are_broken(self, tmp_path: Path) -> None:
        from importlib import resources

        original = Path(str(resources.files("kvrescue.presets") / "tiny" / "base"))
        broken = tmp_path / "broken"
        broken.mkdir()
        for file in original.iterdir():
            (broken / file.name).write_bytes(file.read_bytes())
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        override = f"proposers.base.policy.model={broken}"
        message = fails(6, "ModelLoadError", "solve", "q", "--set", override)
        assert f"{weights} is damaged" in message
        (broken / "tokenizer.json").unlink()
        message = fails(6, "ModelLoadError", "solve", "q", "--set", override)
        assert f"{broken} has no tokenizer" in message


class TestUsage:
    DASHED = "that begins with a dash stands"

    @pytest.mark.parametrize(
        "arguments",
        [
            ("solv",),
            ("solve", "--no-such-option"),
            ("solve", "q", "--preset", "tiny", "--config", "x.yaml"),
            ("solve", "q", "--file", "x.txt"),
            ("demo", "--n", "three"),
        ],
    )
    def test_exit_code_2(self, arguments: tuple[str, ...]) -> None:
        assert "\n" not in fails(2, "UsageError", *arguments)
        assert Ran(*arguments).stdout == ""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("solv",), "no command 'solv'; did you mean 'solve'?"),
            (("xyzzy",), "no command 'xyzzy'; valid: bench, calibrate, config, cost"),
            (("plugins", "shw"), "no command 'shw'; did you mean 'show'?"),
            (("--hepl",), "no option --hepl; did you mean '--help'?"),
            (("solve", "--sed", "3"), "no option --sed; did you mean '--seed'?"),
            (("config", "--prest=tiny"), "no option --prest; did you mean '--preset'?"),
            (("solve", "--no-liv"), "no option --no-liv; did you mean '--no-live'?"),
            (("problem", "-z"), "no option -z; valid: --answer,"),
            (("plugins", "show"), "missing argument"),
            (("solve", "a", "b"), "unexpected extra argument"),
            (("demo", "--quick=1"), "does not take a value"),
            (("demo", "--n", "three"), "whole number"),
            (("solve", "q", "--file", "x"), "not both"),
        ],
    )
    def test_one_line_that_names_the_nearest(
        self, arguments: tuple[str, ...], message: str
    ) -> None:
        found = fails(2, "UsageError", *arguments)
        assert message in found
        assert "\n" not in found

    @pytest.mark.parametrize(
        ("arguments", "way_out"),
        [
            (("grade", r"\boxed{-3}", "-3"), "no option -3; a value {} after --, as in `-- -3`"),
            (("grade", r"\boxed{-3}", "-30"), "{} after --, as in `-- -30`"),
            (("grade", "-.5", "-.5"), "{} after --, as in `-- -.5`"),
            (("grade", "x", r"-\frac12"), r"{} after --, as in `-- '-\frac12'`"),
            (("grade", "x", "-(1,2)"), "{} after --, as in `-- '-(1,2)'`"),
            (("grade", "x", "-x"), "valid: --help, --json, --rule, --timeout; a value {} after --"),
            (("grade", "x", "--3"), "{} after --, as in `-- --3`"),
            (("solve", "-3 + 5?"), "{} after --, as in `-- '-3 + 5?'`"),
            (("problem", "-5"), "{} after --"),
            (("bench", "report", "-1"), "{} after --"),
        ],
    )
    def test_values_that_begin_with_a_dash(self, arguments: tuple[str, ...], way_out: str) -> None:
        assert way_out.format(self.DASHED) in fails(2, "UsageError", *arguments)

    @pytest.mark.parametrize("arguments", [("problem", "-z"), ("solve", "--sed", "3")])
    def test_a_misspelt_option_is_no_value(self, arguments: tuple[str, ...]) -> None:
        assert "after --" not in fails(2, "UsageError", *arguments)

    @pytest.mark.parametrize("value", ["-3", "-x", r"-\frac12"])
    def test_the_way_out_works(self, value: str) -> None:
        ran = Ran("grade", "--rule", "math", "--json", "--", rf"\boxed{{{value}}}", value)
        assert ran.json["correct"]

    def test_an_option_without_its_value(self) -> None:
        assert Ran("solve", "--file").stderr == "error: option '--file' requires an argument\n"

    def test_where_help_is(self) -> None:
        assert "plugins --help)" in fails(2, "UsageError", "plugins", "shw")

    def test_nothing_at_all_shows_help(self) -> None:
        ran = Ran()
        assert ran.code == 2
        assert "Usage" in ran.stdout + ran.stderr
        assert "error" not in ran.stderr

    def test_json_after_two_dashes_is_a_question(self, config: str) -> None:
        ran = Ran("solve", "--config", config, "--set", "limits.max_context=3", "--", "--json")
        assert ran.code == 3
        assert ran.stdout == ""


class TestDebug:
    def test_stack_trace_on_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "Traceback" in Ran("--debug", "config", "--preset", "no").stderr
        monkeypatch.setenv("KVRESCUE_DEBUG", "1")
        assert "Traceback" in Ran("config", "--preset", "no").stderr
        monkeypatch.setenv("KVRESCUE_DEBUG", "0")
        assert "Traceback" not in Ran("config", "--preset", "no").stderr

    def test_unexpected_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def explode(*_: object, **__: object) -> None:
            raise RuntimeError("boom")

        monkeypatch.setattr("kvrescue.config.load_config", explode)
        ran = Ran("config")
        assert ran.code == 1
        assert ran.stderr.strip() == "error: unexpected RuntimeError: boom (--debug shows where)"


def test_every_exit_code_is_explained_in_help() -> None:
    shown = Ran("--help").stdout
    for code in exit_codes():
        assert f"{code} " in shown
