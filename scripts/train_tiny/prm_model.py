"""The process reward model in the layout of Qwen2.5-Math-PRM: a Qwen2 trunk and a small head."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model

WEIGHTS = "model.safetensors"
CORRECT = 1
"""The label of a right step."""


class StepRewardModel(nn.Module):
    """Judges a step at its `<extra_0>`; parameter names are those of the published checkpoints."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.model = Qwen2Model(config)
        width = config.hidden_size
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def probability(self, hidden: Tensor) -> Tensor:
        """The probability that a step is right, from final hidden states."""
        return self.score(hidden).softmax(-1)[..., CORRECT]


def save_prm(prm: StepRewardModel, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    config = prm.model.config
    config.architectures = ["Qwen2ForProcessRewardModel"]
    config.save_pretrained(folder)
    state = {name: tensor.contiguous() for name, tensor in prm.state_dict().items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def load_prm(folder: Path | str) -> StepRewardModel:
    """Read what `save_prm` wrote."""
    prm = StepRewardModel(Qwen2Config.from_pretrained(folder))
    prm.load_state_dict(load_file(Path(folder) / WEIGHTS))
    return prm.eval()
