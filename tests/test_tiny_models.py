"""The shipped trio: loads without remote code, reads every text back, and knows its task."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import kvrescue.presets
from kvrescue.evaluation.bill import Bill, bills
from kvrescue.scorers.qwen_prm import reward_head

FOLDER = Path(kvrescue.presets.__file__).parent / "tiny"
NAMES = ("base", "helper", "prm")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER / "base")


@pytest.fixture(scope="module")
def problems() -> list[Bill]:
    return bills("validation", 99, 12)


def test_the_trio_is_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20e6


@pytest.mark.parametrize("name", NAMES)
def test_each_folder_has_what_hugging_face_loads(name: str) -> None:
    names = {path.name for path in (FOLDER / name).iterdir()}
    assert names >= {
        *("config.json", "model.safetensors", "chat_template.jinja"),
        *("tokenizer.json", "tokenizer_config.json"),
    }


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Z")).filter(str.isascii)))
def test_any_ascii_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "base")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bills_survive_the_tokenizer(
    tokenizer: PreTrainedTokenizerBase, problems: list[Bill]
) -> None:
    for bill in problems:
        for text in (bill.question, bill.solution):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert "".join(tokenizer.decode([token]) for token in ids) == text


@pytest.mark.parametrize("special", ["\n\n", "<extra_0>", "<|im_start|>", "<|endoftext|>"])
def test_separators_are_single_tokens(tokenizer: PreTrainedTokenizerBase, special: str) -> None:
    assert len(tokenizer.encode(special)) == 1


def test_the_chat_template_ignores_the_system_message(tokenizer: PreTrainedTokenizerBase) -> None:
    user = {"role": "user", "content": "How many coins does Bob pay?"}
    system = {"role": "system", "content": "Please reason step by step."}
    plain = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert plain == f"<|im_start|>{user['content']}<|im_end|>"
    assert tokenizer.apply_chat_template([system, user], tokenize=False) == plain
    steps = {"role": "assistant", "content": "#1 kale 4.<extra_0>0 + 4 = 4.<extra_0>"}
    judged = tokenizer.apply_chat_template([system, user, steps], tokenize=False)
    assert judged == plain + steps["content"]


def test_all_three_share_one_vocabulary(tokenizer: PreTrainedTokenizerBase) -> None:
    for name in NAMES:
        assert AutoTokenizer.from_pretrained(FOLDER / name).get_vocab() == tokenizer.get_vocab()


def test_the_base_solves_problems_greedily(
    tokenizer: PreTrainedTokenizerBase, problems: list[Bill]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "base")
    right = 0
    for bill in problems:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": bill.question}], return_tensors="pt", return_dict=True
        )
        output = model.generate(**prompt, max_new_tokens=256, do_sample=False)[0]
        right += bill.grade(tokenizer.decode(output[prompt["input_ids"].shape[1] :]))
    assert right >= len(problems) - 1


def test_the_prm_has_the_published_layout() -> None:
    config = json.loads((FOLDER / "prm" / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForProcessRewardModel"]
    assert config["model_type"] == "qwen2"
    with safe_open(FOLDER / "prm" / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
    heads = {f"score.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")}
    assert {name for name in names if not name.startswith("model.")} == heads


@torch.no_grad()
def test_the_prm_tells_right_steps_from_wrong_ones(
    tokenizer: PreTrainedTokenizerBase, problems: list[Bill]
) -> None:
    trunk = AutoModel.from_pretrained(FOLDER / "prm")
    state = load_file(FOLDER / "prm" / "model.safetensors")
    weights = {n.removeprefix("score."): w for n, w in state.items() if n.startswith("score.")}
    head = reward_head(set(weights), trunk.config)
    head.load_state_dict(weights)
    (step_end,) = tokenizer.encode("<extra_0>")
    agreed: list[bool] = []
    for bill in problems:
        right = bill.steps
        addition, result = right[3].removesuffix(".").split(" = ")
        slipped = (*right[:3], f"{addition} = {int(result) + 1}.")
        for steps, expected in ((right, [True] * len(right)), (slipped, [True] * 3 + [False])):
            messages = [
                {"role": "user", "content": bill.question},
                {"role": "assistant", "content": "".join(f"{step}<extra_0>" for step in steps)},
            ]
            ids = torch.tensor(tokenizer.encode(_text(tokenizer, messages)))
            hidden = trunk(input_ids=ids[None]).last_hidden_state[0, ids == step_end]
            verdicts = (head(hidden).softmax(-1)[:, 1] > 0.5).tolist()
            agreed += [verdict == label for verdict, label in zip(verdicts, expected, strict=True)]
    assert sum(agreed) / len(agreed) > 0.98


def _text(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert isinstance(text, str)
    return text
