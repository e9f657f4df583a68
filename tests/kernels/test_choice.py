"""Which of torch and kernels is used; these tests need no triton."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from collections.abc import Iterator
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvrescue import kernels
from kvrescue.engine.moves import compact, move
from kvrescue.engine.sampler import token_statistics
from kvrescue.errors import ConfigError, DependencyError
from kvrescue.evictors import RKV, KVSlice

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is known of devices is found out anew, before and after."""
    monkeypatch.delenv(kernels.ENVIRONMENT, raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for known in (kernels._obstacle, kernels._numba_obstacle):
        known.cache_clear()
    yield
    for known in (kernels._obstacle, kernels._numba_obstacle):
        known.cache_clear()


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "triton" else find(name)
    )


@pytest.fixture
def with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.fixture
def with_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name == "numba" else None
    )


def use_everything() -> None:
    """Every function that knows a kernel."""
    made = torch.Generator().manual_seed(1)
    keys, queries = torch.randn(2, 2, 2, 30, 8, generator=made)
    RKV(budget=4, window=8).score(KVSlice(keys, queries[:, :, :8]))
    token_statistics(torch.randn(3, 20, generator=made))
    values = torch.randn(3, 5, 2, generator=made)
    compact(values, torch.tensor([[1, 3]] * 3))
    move(values[0], torch.tensor([4]), torch.tensor([0]))


def test_a_cpu_computes_with_torch() -> None:
    """In a fresh process: not even an installed triton or numba is imported."""
    code = (
        "import sys\n"
        "from tests.kernels.test_choice import use_everything\n"
        "use_everything()\n"
        "assert not {'triton', 'numba'} & set(sys.modules)\n"
        "names = {m for m in sys.modules if m.startswith('kvrescue.kernels.')}\n"
        "assert names <= {'kvrescue.kernels.states'}, names\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_off_and_auto_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not kernels.available(CPU)
    for choice in ("", "auto", "off"):
        monkeypatch.setenv(kernels.ENVIRONMENT, choice)
        assert not kernels.available(CPU)


@pytest.mark.usefixtures("no_triton")
def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    use_everything()
    assert not kernels.available(CUDA)
    monkeypatch.setenv(kernels.ENVIRONMENT, "on")
    for device in (CPU, CUDA):
        with pytest.raises(DependencyError, match=r"KVRESCUE_KERNELS=on.*kvrescue\[kernels\]"):
            kernels.available(device)
    with pytest.raises(DependencyError):
        use_everything()


@pytest.mark.usefixtures("with_triton")
def test_on_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.ENVIRONMENT, "on")
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1 before Python starts"):
        kernels.available(CPU)
    with pytest.raises(ConfigError, match="'mps' device"):
        kernels.available(torch.device("mps"))


@pytest.mark.usefixtures("with_triton")
def test_interpreted_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not kernels.available(CPU)
    with kernels.using("on"):
        assert kernels.available(CPU)
        with kernels.using("off"):
            assert not kernels.available(CPU)
        assert kernels.available(CPU)
    assert not kernels.available(CPU)


@pytest.mark.usefixtures("with_triton")
def test_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not kernels.available(CUDA)
    with kernels.using("on"), pytest.raises(DependencyError, match="finds no CUDA device"):
        kernels.available(CUDA)


CHOICES: st.SearchStrategy[list[kernels.Choice]] = st.lists(
    st.sampled_from(("auto", "on", "off")), min_size=1, max_size=5
)


@given(CHOICES, st.randoms(use_true_random=False))
def test_blocks_may_end_in_any_order(choices: list[kernels.Choice], random: Random) -> None:
    """Those of several threads do; the last one entered counts, and nothing is left behind."""
    assert kernels.choice() == "auto"
    open_ = []
    for choice in choices:
        block = kernels.using(choice)
        block.__enter__()
        open_.append((block, choice))
        assert kernels.choice() == choice
    while open_:
        block, _ = open_.pop(random.randrange(len(open_)))
        block.__exit__(None, None, None)
        assert kernels.choice() == (open_[-1][1] if open_ else "auto")


@pytest.mark.usefixtures("no_triton")
def test_what_is_required_is_missed_at_once() -> None:
    kernels.require(CPU)
    with kernels.using("off"):
        kernels.require(CPU)
    with kernels.using("on"), pytest.raises(DependencyError, match="triton is not installed"):
        kernels.require(CPU)


@pytest.mark.usefixtures("no_triton")
def test_a_model_is_not_loaded_without_the_kernels_it_must_have() -> None:
    from kvrescue.policies import TorchPolicy

    with kernels.using("on"), pytest.raises(DependencyError, match="triton is not installed"):
        TorchPolicy("tiny/base", device="cpu")


@pytest.mark.usefixtures("with_triton")
class TestCUDA:
    """On a device that is made up."""

    @pytest.fixture(autouse=True)
    def device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")

    def test_chosen_where_a_kernel_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried: list[torch.device] = []
        monkeypatch.setattr(kernels, "_try", tried.append)
        assert kernels.available(CUDA)
        assert kernels.available(CUDA)
        assert tried == [CUDA]
        with kernels.using("off"):
            assert not kernels.available(CUDA)

    def test_what_does_not_run_is_told_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(device: torch.device) -> None:
            raise RuntimeError("Failed to find C compiler")

        monkeypatch.setattr(kernels, "_try", fails)
        with pytest.warns(RuntimeWarning, match=r"C compiler; kvrescue computes with torch"):
            assert not kernels.available(CUDA)
        assert not kernels.available(CUDA)
        with kernels.using("on"), pytest.raises(DependencyError, match="C compiler") as caught:
            kernels.available(CUDA)
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        assert not kernels.available(CUDA)
        with kernels.using("on"), pytest.raises(DependencyError, match=r"capability 7\.5"):
            kernels.available(CUDA)


@pytest.mark.usefixtures("with_numba")
class TestCompiled:
    """numba, as if it were there."""

    def test_not_where_vllm_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine of vLLM for CPUs cannot be made once numba is loaded; not even it is tried."""
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(kernels, "_try_compiled", lambda: 1 / 0)
        assert not kernels.compiled(CPU)
        with kernels.using("on"), pytest.raises(DependencyError, match="vLLM is installed"):
            kernels.compiled(CPU)

    def test_for_a_cpu_unless_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried: list[int] = []
        monkeypatch.setattr(kernels, "_try_compiled", lambda: tried.append(1))
        for _ in range(2):
            assert kernels.compiled(CPU)
        assert tried == [1]
        assert not kernels.compiled(CUDA)
        with kernels.using("off"):
            assert not kernels.compiled(CPU)

    def test_what_does_not_work_is_told_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails() -> None:
            raise ImportError("Numba needs NumPy 2.4 or less")

        monkeypatch.setattr(kernels, "_try_compiled", fails)
        with pytest.warns(RuntimeWarning, match=r"NumPy 2.4 or less; kvrescue computes with torch"):
            assert not kernels.compiled(CPU)
        assert not kernels.compiled(CPU)
        with kernels.using("on"), pytest.raises(DependencyError, match=r"NumPy 2\.4") as caught:
            kernels.compiled(CPU)
        assert isinstance(caught.value.__cause__, ImportError)

    def test_what_is_kept_may_be_damaged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails() -> None:
            raise EOFError("Ran out of input")

        monkeypatch.setattr(kernels, "_try_compiled", fails)
        monkeypatch.setattr(kernels, "_kept_in", lambda: "/a/folder")
        with pytest.warns(RuntimeWarning, match=r"keeps in /a/folder is damaged, delete it; KVR"):
            assert not kernels.compiled(CPU)

    def test_a_module_that_exits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def exits() -> None:
            raise SystemExit(3)

        monkeypatch.setattr(kernels, "_try_compiled", exits)
        with pytest.warns(RuntimeWarning, match=r"does not work here: SystemExit: 3"):
            assert not kernels.compiled(CPU)


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not kernels.compiled(CPU)
    with kernels.using("on"):
        assert not kernels.compiled(CUDA)
        with pytest.raises(DependencyError, match=r"=on: numba is not.*kvrescue\[kernels\]"):
            kernels.compiled(CPU)


def test_a_module_without_a_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """`find_spec` raises for it; what it lacks is told like any other fault."""
    for name in ("numba", "triton"):
        empty = types.ModuleType(name)
        empty.__spec__ = None
        monkeypatch.setitem(sys.modules, name, empty)
    for name in ("_tracked", "tracked"):
        monkeypatch.delitem(sys.modules, f"kvrescue.kernels.{name}", raising=False)
        monkeypatch.delattr(kernels, name, raising=False)
    with pytest.warns(RuntimeWarning, match="numba does not work here: ImportError"):
        assert not kernels.compiled(CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with kernels.using("on"):
        assert kernels.available(CPU)


def test_unknown_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.ENVIRONMENT, "auot")
    with pytest.raises(ConfigError, match="KVRESCUE_KERNELS = 'auot'; did you mean 'auto'"):
        kernels.available(CPU)
    with pytest.raises(ConfigError, match="KVRESCUE_KERNELS = 'auot'"):
        kernels.compiled(CPU)
    with pytest.raises(ConfigError, match="'yes'; valid: auto, off, on"), kernels.using("yes"):  # type: ignore[arg-type]
        pass
