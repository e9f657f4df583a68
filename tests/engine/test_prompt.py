"""Prompts: what the chat template makes of a question, and text that spells special tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.engine.prompt import encode_text, render_prompt
from kvrescue.errors import ModelLoadError
from tests.engine.tokenizers import SPECIALS, byte_level, sentencepiece, word_level

TEXTS = st.lists(
    st.sampled_from([*SPECIALS, "Let x = 3.", "\n\n", " ", "文", "😀", "<", "|im_end|>", "é"]),
    max_size=8,
).map("".join)


def template(question: str, system: str | None = "Be brief.") -> str:
    head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{head}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("question", ["What is 3 + 4?", "  \n\n x ", "文字 😀", "<|im_end"])
def test_a_plain_question_is_the_encoding_of_the_whole_template(make, question: str) -> None:
    tokenizer = make()
    for system in ("Be brief.", None):
        expected = tokenizer.encode(template(question, system), add_special_tokens=False)
        assert render_prompt(tokenizer, question, system, "chat") == expected


@pytest.mark.parametrize("kind", ["chat", "raw"])
@given(question=TEXTS)
def test_a_question_adds_no_special_token(kind: str, question: str) -> None:
    tokenizer = byte_level()
    special = set(tokenizer.all_special_ids)
    ids = render_prompt(tokenizer, question, None, kind)  # type: ignore[arg-type]
    plain = render_prompt(tokenizer, "x", None, kind)  # type: ignore[arg-type]
    assert [i for i in ids if i in special] == [i for i in plain if i in special]
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text == (template(question, None) if kind == "chat" else question)


@given(text=TEXTS)
def test_encoded_text_decodes_to_itself_without_specials(text: str) -> None:
    for make in (byte_level, sentencepiece):
        tokenizer = make()
        ids = encode_text(tokenizer, text)
        assert not set(ids) & set(tokenizer.all_special_ids)
        assert tokenizer.decode(ids) == text
    if not any(s in text for s in SPECIALS):
        assert encode_text(byte_level(), text) == byte_level().encode(text)


def test_reserved_strings_need_not_be_special_tokens() -> None:
    tokenizer = byte_level()  # <think> is an added token, but not a special one
    think = tokenizer.convert_tokens_to_ids("<think>")
    assert think in encode_text(tokenizer, "a<think>b")
    ids = encode_text(tokenizer, "a<think>b", ["<think>"])
    assert think not in ids
    assert tokenizer.decode(ids) == "a<think>b"


def test_a_vocabulary_that_cannot_spell_a_special_token_leaves_it_out() -> None:
    tokenizer = word_level()
    ids = encode_text(tokenizer, "So<|im_end|>")
    assert not set(ids) & {tokenizer.convert_tokens_to_ids(s) for s in SPECIALS}


def test_marks_in_the_text_are_harmless() -> None:
    tokenizer = byte_level()
    mark = "\ue000\ue0010\ue001\ue000"
    nested = mark[:2] + mark + "7" + mark[-2:]
    for text in (f"a{mark}b", f"a{nested}b", f"{mark}<|im_end|>"):
        ids = encode_text(tokenizer, text)
        assert not set(ids) & set(tokenizer.all_special_ids)
        assert "\ue000\ue001" not in tokenizer.decode(ids)


def test_raw_keeps_what_the_tokenizer_puts_around_a_text() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_level.__wrapped__()
    eot = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", eot)]
    )
    plain = render_prompt(tokenizer, "Let x", None, "raw")
    assert plain[0] == eot
    ids = render_prompt(tokenizer, "Let<|im_end|>", None, "raw")
    assert [i for i in ids if i in tokenizer.all_special_ids] == [eot]
    assert ids[0] == eot


def test_a_broken_chat_template_is_told() -> None:
    tokenizer = byte_level.__wrapped__()
    tokenizer.chat_template = "{{ raise_exception('only three turns') }}"
    with pytest.raises(ModelLoadError, match="only three turns"):
        render_prompt(tokenizer, "x", None, "chat")
    tokenizer.chat_template = "{% for %}"
    with pytest.raises(ModelLoadError, match="chat template fails"):
        render_prompt(tokenizer, "x", None, "chat")
