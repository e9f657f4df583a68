"""`cost` and `bench paper`: what they print, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvrescue.cost import CostModel, Machine, shape_of
from kvrescue.evaluation.paper import decode_costs
from kvrescue.evaluation.paper.check import check_paper
from tests.cli.run import Ran, fails


def data(*arguments: str) -> Any:
    ran = Ran("cost", *arguments, "--json")
    assert ran.code == 0, ran.stderr
    assert ran.stderr == ""
    return ran.json


class TestCost:
    def test_the_default_is_the_papers_example(self) -> None:
        found = data()
        model = CostModel(base=shape_of("7B"), helper=shape_of("1.5B"))
        assert found["memory"]["kv_bytes"]["kv_rescue"] == model.kv_bytes("kv_rescue")
        assert found["memory"]["ratio"] == model.memory_ratio
        assert found["compute"]["helper_fraction"] == model.helper_fraction
        assert found["setting"]["bound"] == 640
        assert found["problem"] is None
        assert found["fit"] is None

    def test_every_option_reaches_the_model(self) -> None:
        options = {"n": 3, "helper_n": 2, "length": 999, "budget": 40, "window": 7, "alpha": 1.5}
        options |= {"kv_element_bytes": 4, "weight_bytes": 0.5}
        arguments = [
            text
            for name, value in options.items()
            for text in ("--" + name.replace("_", "-"), str(value))
        ]
        setting = data(*arguments, "--verifier", "tiny/prm")["setting"]
        assert setting == {**options, "bound": 47}

    def test_a_measured_crossover_gives_alpha(self) -> None:
        assert data("--crossover", "2500")["setting"]["alpha"] == 2500 / 640 - 1

    def test_tokens_of_the_paper(self) -> None:
        found = data("--tokens", "math500", "--budget", "64", "--length", "800")
        rows = {
            row.method: row
            for row in decode_costs()
            if row.dataset == "MATH500" and row.budget in (None, 64)
        }
        problem = found["problem"]
        assert problem["full_best_of_n"]["base_tokens"] == rows["full_kv"].base_tokens
        assert problem["evicted_best_of_n"]["base_tokens"] == rows["best_of_n"].base_tokens
        assert problem["kv_rescue"]["base_tokens"] == rows["kv_rescue"].base_tokens
        assert problem["kv_rescue"]["helper_tokens"] == rows["kv_rescue"].helper_tokens
        assert set(problem["kv_rescue"]["flops"]) == {"base", "helper"}

    def test_tokens_of_ones_own(self) -> None:
        problem = data("--tokens", "1,2, 3,4")["problem"]
        given = [problem[m]["base_tokens"] for m in problem]
        assert given == [1, 2, 3]
        assert problem["kv_rescue"]["helper_tokens"] == 4

    def test_what_fits(self) -> None:
        found = data("--memory-gib", "40", "--gpus", "8", "--reserved-gib", "2", "--base", "72B")
        model = CostModel(base=shape_of("72B"), helper=shape_of("1.5B"))
        machine = Machine(memory_gib=40, gpus=8, reserved_gib=2)
        for method, fit in found["fit"].items():
            expected = model.fit(method, machine)
            assert fit["problems"] == expected.problems > 0
            assert fit["available_bytes"] == expected.available
            assert fit["weights_bytes"] == expected.weights

    def test_a_configuration_file(self, tmp_path: Path) -> None:
        config = {
            "model_type": "qwen2",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "vocab_size": 542,
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        models = data("--base", str(tmp_path), "--helper", "tiny/helper")["models"]
        assert models["base"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
        assert models["helper"]["parameters"] == shape_of("tiny/helper").parameters

    def test_for_people(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")  # as narrow as what is not a terminal gets
        ran = Ran("cost", "--tokens", "GSM8K", "--memory-gib", "80", "--verifier", "prm-7B")
        assert ran.code == 0
        assert ran.stderr == ""
        for text in ("1.75 GiB", "56.0 KiB", "What fits into 80.0 GiB", "2,477", "verifier"):
            assert text in ran.stdout
        words = " ".join(ran.stdout.split())
        assert "reported, not derivable from its equations" in words
        assert max(map(len, ran.stdout.splitlines())) <= 120

    def test_other_models_are_not_held_against_the_paper(self) -> None:
        assert "derivable" not in Ran("cost", "--base", "smollm2", "--helper", "smollm2").stdout

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["--helper", "7B"], "KV-Rescue always needs more than full KV"),
            (["--length", "600"], "nothing is evicted yet"),
            (["--length", "1000"], "here it costs "),
            (["--length", "9000"], "here it saves "),
            (["--memory-gib", "10"], "do not fit; use more GPUs or smaller weights"),
            (["--memory-gib", "14.5"], "one problem does not fit"),
            (["--memory-gib", "24"], "take "),
        ],
    )
    def test_what_it_says(self, arguments: list[str], told: str) -> None:
        assert told in " ".join(Ran("cost", *arguments).stdout.split())

    @pytest.mark.parametrize(
        ("arguments", "kind", "told"),
        [
            (["--base", "7C"], "UnknownNameError", "known are 7B, 72B"),
            (["--verifier", "nothing"], "UnknownNameError", "unknown model 'nothing'"),
            (["--length", "0"], "ConfigError", "length = 0"),
            (["--length", "9" * 400], "ConfigError", "length = 9"),
            (["--budget", "-5"], "ConfigError", "budget = -5"),
            (["--n", "0"], "ConfigError", "n = 0"),
            (["--helper-n", "0"], "ConfigError", "helper_n = 0"),
            (["--window", "-1"], "ConfigError", "window = -1"),
            (["--alpha", "nan"], "ConfigError", "alpha = nan"),
            (["--alpha", "-1"], "ConfigError", "alpha = -1"),
            (["--weight-bytes", "inf"], "ConfigError", "weight_bytes = inf"),
            (["--kv-element-bytes", "0"], "ConfigError", "kv_element_bytes = 0"),
            (["--crossover", "100"], "ConfigError", "crossover = 100"),
            (["--memory-gib", "nan"], "ConfigError", "memory_gib = nan"),
            (["--memory-gib", "8", "--gpus", "0"], "ConfigError", "gpus = 0"),
            (["--memory-gib", "8", "--reserved-gib", "-1"], "ConfigError", "reserved_gib = -1"),
            (["--tokens", "1,2,3"], "ConfigError", "expected four whole numbers"),
            (["--tokens", "1,2,3,0"], "ConfigError", "expected four whole numbers"),
            (["--tokens", "1,2,3," + "9" * 5000], "ConfigError", "expected four whole numbers"),
            (["--tokens", "1,2,3,x"], "ConfigError", "expected four whole numbers"),
            (["--tokens", "1,2,3,4,5"], "ConfigError", "expected four whole numbers"),
            (["--tokens", "MATH50"], "UnknownNameError", "did you mean 'MATH500'"),
            (["--tokens", "MATH500", "--budget", "65"], "ConfigError", "64, 128, 256, 512"),
        ],
    )
    def test_refusals(self, arguments: list[str], kind: str, told: str) -> None:
        assert told in fails(4, kind, "cost", *arguments)

    def test_files_that_are_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        message = fails(6, "ModelLoadError", "cost", "--helper", str(tmp_path))
        assert "config.json: num_hidden_layers is missing" in message

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--length", "many"],
            ["--length", "4096.5"],
            ["--alpha", "1", "--crossover", "2500"],
            ["--gpus", "2"],
            ["--reserved-gib", "2"],
            ["extra"],
        ],
    )
    def test_usage(self, arguments: list[str]) -> None:
        assert "(see kvrescue cost --help)" in fails(2, "UsageError", "cost", *arguments)


class TestPaper:
    def test_json(self) -> None:
        found = {claim["name"]: claim for claim in Ran("bench", "paper", "--json").json}
        claims = check_paper()
        assert list(found) == [claim.name for claim in claims]
        for claim in claims:
            assert found[claim.name]["agrees"] is claim.agrees
            assert found[claim.name]["recomputed"] == claim.recomputed
            assert len(found[claim.name]["cells"]) == len(claim.cells)

    def test_for_people(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")  # as narrow as what is not a terminal gets
        ran = Ran("bench", "paper")
        assert ran.code == 0
        for text in ("87.4 %", "43.4 %", "3.31x", "72B, N = 8, OlympiadBench", "10,587"):
            assert text in ran.stdout
        claims = check_paper()
        agreeing = sum(claim.agrees is True for claim in claims)
        assert f"{agreeing} of {len(claims)} claims agree" in ran.stdout
        assert max(map(len, ran.stdout.splitlines())) <= 120

    def test_all_cells(self) -> None:
        assert len(Ran("bench", "paper", "--cells").stdout) > len(Ran("bench", "paper").stdout)

    def test_unknown_subcommand(self) -> None:
        assert "did you mean 'paper'" in fails(2, "UsageError", "bench", "papers")
