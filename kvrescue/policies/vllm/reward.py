"""RewardModel: reward models that vLLM has no class for, through its public model registry.

vLLM knows one architecture with a head of two labels per token: Qwen2 with a two-layer head, and
`head_dim` = hidden size / heads. This class takes the same checkpoints as `QwenPRM`: any of the
families, and one linear layer (as TRL trains it) or two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.pooler.tokwise import pooler_for_token_classify
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix

from kvrescue.errors import ModelLoadError
from kvrescue.policies.vllm.lifeline import hold_on

__all__ = ["Registered", "RewardModel", "overrides"]

hold_on()  # this is imported in every process

_VLLMS: Final = "Qwen2ForProcessRewardModel"
_OURS: Final = "KVRescueRewardModel"
_LAYERS: Final = "kvrescue_head"
"""Field of the model's configuration: one bias flag per linear layer of the head."""


class RewardModel(nn.Module):
    """Backbone `model`, head `score` in float32, softmax over its two labels at every token."""

    is_pooling_model = True
    packed_modules_mapping: Final = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.head_dtype: torch.dtype = vllm_config.model_config.head_dtype
        self.model = _backbone(self.config)(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model")
        )
        hidden = int(self.config.hidden_size)
        biases = getattr(self.config, _LAYERS)
        layers = [
            ReplicatedLinear(
                hidden,
                hidden if i + 1 < len(biases) else 2,
                bias=bias,
                params_dtype=self.head_dtype,
                return_bias=False,
            )
            for i, bias in enumerate(biases)
        ]
        self.score = (
            layers[0] if len(layers) == 1 else nn.Sequential(layers[0], nn.ReLU(), *layers[1:])
        )
        self.pooler = pooler_for_token_classify(vllm_config.model_config.pooler_config)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        embedded: Tensor = self.model.embed_input_ids(input_ids)
        return embedded

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """[tokens, 2] logits."""
        hidden = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        logits: Tensor = self.score(hidden.to(self.head_dtype))
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loader = AutoWeightsLoader(self, ignore_unexpected_prefixes=["lm_head."])
        loaded: set[str] = loader.load_weights(weights)
        return loaded


ModelRegistry.register_model(_OURS, RewardModel)


class Registered:
    """Extends vLLM's workers by nothing; named in the configuration so that every worker process
    imports this module, and thereby knows the model."""


def overrides(config: Any, biases: tuple[bool, ...]) -> Mapping[str, Any]:
    """What to change in a checkpoint's configuration so that vLLM computes what it is.

    Args:
        config: of the checkpoint.
        biases: one flag per linear layer of its head: whether it has a bias.
    """
    if config.model_type == "qwen2" and biases == (True, True) and not _odd_heads(config):
        return {"architectures": [_VLLMS]}
    _backbone(config)
    changes: dict[str, Any] = {"architectures": [_OURS], _LAYERS: biases}
    if config.model_type == "qwen2" and _odd_heads(config):
        changes["qkv_bias"] = True  # read by vLLM's Llama
    return changes


def _backbone(config: Any) -> Any:
    """vLLM's class for the layers; its Qwen2 ignores `head_dim`, which its Llama honours."""
    known = {"qwen2": Qwen2Model, "qwen3": Qwen3Model, "llama": LlamaModel, "mistral": LlamaModel}
    found = known.get(config.model_type)
    if found is None:
        raise ModelLoadError(
            f"model type {config.model_type!r} is not supported as a reward model; use one of the "
            f"families {', '.join(known)}"
        )
    return LlamaModel if found is Qwen2Model and _odd_heads(config) else found


def _odd_heads(config: Any) -> bool:
    usual = config.hidden_size // config.num_attention_heads
    return bool((getattr(config, "head_dim", None) or usual) != usual)
