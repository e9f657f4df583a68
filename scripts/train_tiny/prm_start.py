"""The start of the PRM: the base as its trunk, and a comparison wired into the layers above it.

The base, reading with full attention, predicts nearly every token of a right solution. A step is
wrong where one of its tokens is not the one predicted. The start makes that comparison explicit,
and training does the rest:

* The trunk is the base, embedded in a wider residual stream. The new dimensions carry a clean code
  of the token itself (numbers by Fourier phases, words by directions of the unembedding) and its
  class; after three layers of the trunk the token is no longer readable from the old ones.
* The comparing layer has one head per token class. Its key is the code of the token predicted at a
  place, its query the code of the token that stands there, one place later. Where they match, the
  head attends there and writes nothing; where they do not, it falls through to the first token of
  the prompt, a sink, and writes a "mismatch" direction.
* The collecting layer lets `<extra_0>` look for that direction over the last few tokens.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from kvrescue.evaluation.bill import ITEMS, PAY
from scripts.train_tiny.initialisation import (
    HEAD_DIM,
    fourier_code,
    head_rows,
    look_back_biases,
    orthonormal_rows,
)
from scripts.train_tiny.prm_data import TreeBatch
from scripts.train_tiny.prm_model import StepRewardModel
from scripts.train_tiny.tokenizer import INDICES, NUMBERS, PRICES, TOKEN_ID, VOCABULARY

EXTRA_WIDTH = 32
EXTRA_LAYERS = 2
CODE = 24
"""Dimensions of the token code; the next ones flag the token's class, the last "no class"."""
CLASSES: tuple[tuple[str, ...], ...] = (
    NUMBERS,
    PRICES,
    (*ITEMS, PAY),
    (*INDICES, " +", " = ", ".", " \\boxed{", "}"),
)
_FLAG = 0.5
_PERIODS = {0: (2, 5, 10, 20, 40, 100, 200), 1: (2, 5, 10, 20, 40)}

# Logits of the comparing heads: a match beats the sink, the sink beats a mismatch.
_MATCH = 50.0
_SINK = 0.78 * _MATCH
_LOOK_BACK_PAIRS = range(3)
_LOOK_BACK_STRENGTH = 8.0
_MISMATCH_STRENGTH = 12.0
_SLOWEST = HEAD_DIM // 2 - 1
"""The head dimension that RoPE turns least: it carries what should not depend on distance."""


@dataclass
class Trunk:
    """What goes on predicting the next token from the trunk's output, in training only."""

    layers: int
    width: int
    norm: nn.Module
    unembedding: nn.Linear

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits from the residual stream after the trunk."""
        return self.unembedding(self.norm(hidden[..., : self.width]))


def start_prm(base: Qwen2ForCausalLM) -> tuple[StepRewardModel, Trunk]:
    """A PRM whose trunk computes what the base computes."""
    old = base.config
    config = copy.deepcopy(old)
    config.hidden_size = old.hidden_size + EXTRA_WIDTH
    config.num_attention_heads = config.num_key_value_heads = config.hidden_size // HEAD_DIM
    config.num_hidden_layers = old.num_hidden_layers + EXTRA_LAYERS
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    prm = StepRewardModel(config)
    with torch.no_grad():
        _widen(prm, base)
    trunk = Trunk(
        layers=old.num_hidden_layers,
        width=old.hidden_size,
        norm=copy.deepcopy(base.model.norm),
        unembedding=copy.deepcopy(base.lm_head),
    )
    return prm, trunk


@torch.no_grad()
def wire_comparison(prm: StepRewardModel, trunk: Trunk, examples: list[TreeBatch]) -> list[float]:
    """Wire the layers above the trunk; the maps are fitted on the activations of a few rows.

    Returns, per token class, the AUC of the mismatch direction as a detector of a step's first
    wrong token, before any training.
    """
    seen = _Activations(prm, trunk, examples)
    mismatch = torch.randn(prm.model.config.hidden_size)
    mismatch /= mismatch.norm()
    comparing, *collecting = prm.model.layers[trunk.layers :]
    for layer in (comparing, *collecting):
        layer.mlp.down_proj.weight.mul_(0.5)
    codes, _ = token_codes(trunk)
    for token_class in range(len(CLASSES)):
        _wire_comparing_head(comparing.self_attn, token_class, codes, trunk, seen, mismatch)
    for layer in collecting:
        _wire_collecting_layer(layer.self_attn, mismatch)
    prm.score[0].weight[0] = 2 * mismatch
    prm.score[0].bias[0] = 0
    prm.score[2].weight[:, 0] = torch.tensor([0.5, -0.5])
    return [_mismatch_auc(prm, trunk, examples, mismatch, c) for c in range(len(CLASSES))]


def token_codes(trunk: Trunk) -> tuple[Tensor, Tensor]:
    """Unit code per class and token [classes, vocabulary, CODE], and class membership."""
    codes = torch.zeros(len(CLASSES), len(VOCABULARY), CODE)
    member = torch.zeros(len(CLASSES), len(VOCABULARY))
    readout = trunk.unembedding.weight * trunk.norm.weight
    for token_class, tokens in enumerate(CLASSES):
        ids = torch.tensor([TOKEN_ID[token] for token in tokens])
        member[token_class, ids] = 1
        if token_class in _PERIODS:
            periods = _PERIODS[token_class]
            code = torch.stack([fourier_code(int(token), periods) for token in tokens])
            code[:, len(periods)] = 0  # the sine of the period 2 is always zero
        else:
            centred = readout[ids] - readout[ids].mean(0)
            _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
            kept = min(CODE, len(tokens) - 1)
            code = (centred @ directions[:kept].T) / sizes[:kept].clamp_min(1e-3).sqrt()
        codes[token_class, ids, : code.shape[1]] = code / code.norm(dim=-1, keepdim=True)
    return codes, member


def _widen(prm: StepRewardModel, base: Qwen2ForCausalLM) -> None:
    """Copy the base into the wider trunk; what is new starts as zero and adds nothing."""
    old, new = base.model, prm.model
    width, heads = base.config.hidden_size, base.config.num_attention_heads
    group = heads // base.config.num_key_value_heads
    # RMSNorm averages over all dimensions, and the new ones are nearly empty.
    norm_scale = math.sqrt(width / prm.model.config.hidden_size)
    trunk = Trunk(len(old.layers), width, old.norm, base.lm_head)
    codes, member = token_codes(trunk)
    embedding = new.embed_tokens.weight
    embedding.zero_()
    embedding[:, :width] = old.embed_tokens.weight
    embedding[:, width : width + CODE] = codes.sum(0)
    flags = torch.cat([member, (member.sum(0, keepdim=True) == 0).float()])
    embedding[:, width + CODE : width + CODE + len(flags)] = _FLAG * flags.T
    for source, target in zip(old.layers, new.layers, strict=False):
        for name in ("input_layernorm", "post_attention_layernorm"):
            getattr(target, name).weight.fill_(1.0)
            getattr(target, name).weight[:width] = norm_scale * getattr(source, name).weight
        copied = slice(0, heads * HEAD_DIM)
        for name in ("q_proj", "k_proj", "v_proj"):
            projection, wide = getattr(source.self_attn, name), getattr(target.self_attn, name)
            weight, bias = projection.weight, projection.bias
            if name != "q_proj":  # one KV head per query head: the PRM is not grouped
                weight = weight.view(-1, HEAD_DIM, width).repeat_interleave(group, 0).flatten(0, 1)
                bias = bias.view(-1, HEAD_DIM).repeat_interleave(group, 0).flatten()
            wide.weight.normal_(0, 0.02)
            wide.bias.zero_()
            wide.weight[copied] = 0
            wide.weight[copied, :width] = weight
            wide.bias[copied] = bias
        target.self_attn.o_proj.weight.zero_()
        target.self_attn.o_proj.weight[:width, copied] = source.self_attn.o_proj.weight
        for name in ("gate_proj", "up_proj"):
            getattr(target.mlp, name).weight.zero_()
            getattr(target.mlp, name).weight[:, :width] = getattr(source.mlp, name).weight
        target.mlp.down_proj.weight.zero_()
        target.mlp.down_proj.weight[:width] = source.mlp.down_proj.weight


class _Activations:
    """Normalised residual streams after the trunk, collected at the places that matter."""

    def __init__(self, prm: StepRewardModel, trunk: Trunk, examples: list[TreeBatch]) -> None:
        at_tokens, tokens, before, predicted, first, after, expected = ([] for _ in range(7))
        for batch in examples:
            hidden = trunk_output(prm, trunk, batch)
            normed = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
            at, nxt = batch.prefixes, batch.next_tokens
            at_tokens.append(normed[at.rows, at.columns])
            tokens.append(batch.tokens[at.rows, at.columns])
            before.append(normed[nxt.rows, nxt.columns])
            predicted.append(trunk.logits(hidden[nxt.rows, nxt.columns]).argmax(-1))
            after.append(normed[nxt.rows, nxt.columns + 1])
            expected.append(nxt.labels)
            first.append(normed[:, 0])
        self.at_tokens, self.tokens = torch.cat(at_tokens), torch.cat(tokens)
        self.before, self.predicted = torch.cat(before), torch.cat(predicted)
        self.after, self.expected = torch.cat(after), torch.cat(expected)
        self.first = torch.cat(first)


def trunk_output(prm: StepRewardModel, trunk: Trunk, batch: TreeBatch) -> Tensor:
    """The residual stream after the trunk."""
    return _hidden_states(prm, batch)[trunk.layers]


def _hidden_states(prm: StepRewardModel, batch: TreeBatch) -> tuple[Tensor, ...]:
    output = prm.model(
        input_ids=batch.tokens,
        position_ids=batch.positions,
        attention_mask=batch.mask,
        use_cache=False,
        output_hidden_states=True,
    )
    return output.hidden_states


def _wire_comparing_head(
    attention: Qwen2Attention,
    token_class: int,
    codes: Tensor,
    trunk: Trunk,
    seen: _Activations,
    mismatch: Tensor,
) -> None:
    width = mismatch.shape[0]
    root = math.sqrt(HEAD_DIM)
    first_flag = trunk.width + CODE
    flag = first_flag + token_class
    member = codes[token_class].norm(dim=-1) > 0
    flag_size = seen.at_tokens[member[seen.tokens]][:, flag].mean().item()
    code_scale = flag_size / _FLAG

    own_code = torch.zeros(CODE, width)
    own_code[:, trunk.width : trunk.width + CODE] = torch.eye(CODE) / code_scale
    none = torch.zeros(len(seen.first), CODE)
    expected_code = _ridge(
        torch.cat([seen.before, seen.first]), torch.cat([codes[token_class][seen.predicted], none])
    )
    repeats = 20  # the one first token of a row against its hundreds of others
    others = torch.cat([seen.before, seen.at_tokens])
    is_first = _ridge(
        torch.cat([others, seen.first.repeat(repeats, 1)]),
        torch.cat([torch.zeros(len(others)), torch.ones(repeats * len(seen.first))])[:, None],
    )[0]
    hit = member[seen.expected] & (seen.predicted == seen.expected)
    similarity = (seen.after[hit] @ own_code.T) * (seen.before[hit] @ expected_code.T)
    scale = math.sqrt(_MATCH / similarity.sum(-1).mean().item() * root)

    half = HEAD_DIM // 2
    slow = range(_LOOK_BACK_PAIRS.stop, _SLOWEST)
    content = [*slow, *(dim + half for dim in slow)]  # CODE dimensions that RoPE hardly turns
    query_bias, key_bias = look_back_biases(1, _LOOK_BACK_PAIRS, _LOOK_BACK_STRENGTH)
    look_back = _LOOK_BACK_STRENGTH**2 * len(_LOOK_BACK_PAIRS) / root
    query, key = 0.01 * torch.randn(HEAD_DIM, width), 0.01 * torch.randn(HEAD_DIM, width)
    query[content], key[content] = scale * own_code, scale * expected_code
    # The sink: as attractive as one place back plus a bonus, for tokens of the class alone.
    key[_SLOWEST] = 8 * is_first
    key[: _LOOK_BACK_PAIRS.stop] -= _LOOK_BACK_STRENGTH * is_first
    query[_SLOWEST] = 0
    query_bias[_SLOWEST] = look_back * root / 8
    query[_SLOWEST, first_flag : first_flag + len(CLASSES) + 1] = -look_back * root / 8 / flag_size
    query[_SLOWEST, flag] = _SINK * root / 8 / flag_size
    value, output = 0.02 * torch.randn(HEAD_DIM, width), 0.02 * torch.randn(width, HEAD_DIM)
    value[0], output[:, 0] = is_first, _MISMATCH_STRENGTH * mismatch
    mine = head_rows(token_class)
    attention.q_proj.weight[mine], attention.q_proj.bias[mine] = query, query_bias
    attention.k_proj.weight[mine], attention.k_proj.bias[mine] = key, key_bias
    attention.v_proj.weight[mine], attention.o_proj.weight[:, mine] = value, output


def _wire_collecting_layer(attention: Qwen2Attention, mismatch: Tensor) -> None:
    """Heads that look over the last eight tokens, rather at mismatches, and copy them."""
    width = mismatch.shape[0]
    query_bias, key_bias = look_back_biases(3.5, pairs=range(2, 6), strength=7.0)
    query_bias[_SLOWEST] = 6.0
    for head in range(width // HEAD_DIM):
        mine = head_rows(head)
        values = orthonormal_rows(HEAD_DIM, width)
        values[0] = mismatch
        key = 0.02 * torch.randn(HEAD_DIM, width)
        key[_SLOWEST] = 2 * mismatch
        attention.v_proj.weight[mine] = values + 0.02 * torch.randn(HEAD_DIM, width)
        attention.o_proj.weight[:, mine] = 0.5 * values.T + 0.02 * torch.randn(width, HEAD_DIM)
        attention.k_proj.weight[mine], attention.k_proj.bias[mine] = key, key_bias
        attention.q_proj.weight[mine] = 0.02 * torch.randn(HEAD_DIM, width)
        attention.q_proj.bias[mine] = query_bias


def _mismatch_auc(
    prm: StepRewardModel,
    trunk: Trunk,
    examples: list[TreeBatch],
    mismatch: Tensor,
    token_class: int,
) -> float:
    member = torch.zeros(len(VOCABULARY), dtype=torch.bool)
    member[[TOKEN_ID[token] for token in CLASSES[token_class]]] = True
    right, wrong = [], []
    for batch in examples:
        states = _hidden_states(prm, batch)
        written = (states[trunk.layers + 1] - states[trunk.layers]) @ mismatch
        for at, found in ((batch.prefixes, right), (batch.first_errors, wrong)):
            of_class = member[batch.tokens[at.rows, at.columns]]
            chosen = of_class & (at.labels == int(found is right))
            found.append(written[at.rows, at.columns][chosen])
    below = torch.cat(right).sort().values
    return (torch.searchsorted(below, torch.cat(wrong)) / len(below)).mean().item()


def _ridge(inputs: Tensor, targets: Tensor) -> Tensor:
    """Least squares with a little regularisation, as a weight matrix [targets, inputs]."""
    gram = inputs.T @ inputs
    gram += 1e-4 * len(inputs) * torch.eye(gram.shape[0])
    return torch.linalg.solve(gram, inputs.T @ targets).T
