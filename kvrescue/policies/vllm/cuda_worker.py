"""The CUDA worker; apart, because importing vLLM's needs CUDA packages. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from kvrescue.policies.vllm.options import evictor_of
from kvrescue.policies.vllm.worker import EntropyCUDARunner, EvictingCUDARunner

__all__ = ["CUDAWorker"]


class CUDAWorker(Worker):  # type: ignore[misc]
    """CUDA worker; evicts when the configuration names an evictor."""

    def _make_model_runner(self) -> Any:
        evicts = evictor_of(self.vllm_config.additional_config) is not None
        return (EvictingCUDARunner if evicts else EntropyCUDARunner)(self.vllm_config, self.device)
