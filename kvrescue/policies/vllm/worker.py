"""Workers: vLLM's own, with our model runner; named by `worker_cls`, imported in every process."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kvrescue.errors import ConfigError
from kvrescue.policies.vllm.lifeline import hold_on
from kvrescue.policies.vllm.options import evictor_of
from kvrescue.policies.vllm.runner import EntropyMixin, EvictionMixin

__all__ = ["CPUWorker"]


hold_on()  # this is imported in every process


class EntropyCPURunner(EntropyMixin, CPUModelRunner):  # type: ignore[misc]
    """Stock runner that reports entropies."""


class EvictingCPURunner(EvictionMixin, CPUModelRunner):  # type: ignore[misc]
    """Runner that evicts."""


class EntropyCUDARunner(EntropyMixin, GPUModelRunner):  # type: ignore[misc]
    """Stock runner that reports entropies."""


class EvictingCUDARunner(EvictionMixin, GPUModelRunner):  # type: ignore[misc]
    """Runner that evicts."""


class CPUWorker(cpu_worker.CPUWorker):  # type: ignore[misc]
    """CPU worker; evicts when the configuration names an evictor."""

    def init_device(self) -> None:
        """The runner's class is a global of vLLM's module, looked up when it is needed."""
        evicts = evictor_of(self.vllm_config.additional_config) is not None
        runner: Any = EvictingCPURunner if evicts else EntropyCPURunner
        stock = cpu_worker.CPUModelRunner
        cpu_worker.CPUModelRunner = runner
        try:
            super().init_device()
        finally:
            cpu_worker.CPUModelRunner = stock
        if type(self.model_runner) is not runner:
            raise ConfigError(
                f"vLLM built a {type(self.model_runner).__name__} instead of kvrescue's runner; "
                "set VLLM_USE_V2_MODEL_RUNNER=0 and use the supported vLLM version"
            )
