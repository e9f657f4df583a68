"""Token texts against the tokenizers' own decoding; the step boundary against plain `str.find`."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from kvrescue.engine.text import StepText, TokenText
from tests.engine.tokenizers import CORPUS, SPECIALS, byte_level, sentencepiece, word_level

KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "word_level": word_level}
TEXTS = st.text(st.sampled_from([*"Letx=3.,:\n\r $\\{}73", "文", "字", "é", "😀"]), max_size=40)


def decoded(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


# -- TokenText ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_pieces_add_up_to_the_decoded_text(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]()
    pieces = TokenText(tokenizer)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
    raw = b"".join(pieces[i] for i in ids)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        # Not UTF-8: only how many replacement characters stand for it may differ.
        if kind == "byte_level":
            assert pieces.decode(ids) == decoded(tokenizer, ids)
        assert "\ufffd" in decoded(tokenizer, ids)
        return
    assert text == pieces.decode(ids) == decoded(tokenizer, ids)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@given(text=TEXTS)
def test_any_text_survives_encoding(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert TokenText(tokenizer).decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_supported_kinds_are_exact_and_specials_silent(kind: str) -> None:
    tokenizer = KINDS[kind]()
    pieces = TokenText(tokenizer)
    assert kind == "word_level" or pieces.is_exact
    for special in SPECIALS:
        assert pieces[tokenizer.convert_tokens_to_ids(special)] == b""


def test_byte_level_has_the_tokens_these_tests_are_about() -> None:
    tokenizer = byte_level()
    assert len(tokenizer.encode(".\n\n", add_special_tokens=False)) == 1
    assert len(tokenizer.encode("😀", add_special_tokens=False)) in (1, 2, 3, 4)
    assert TokenText(tokenizer)[tokenizer.convert_tokens_to_ids("<think>")] == b"<think>"
    assert len(tokenizer.encode("龍", add_special_tokens=False)) > 1  # split over tokens


def test_a_spaced_decoder_is_not_exact() -> None:
    """Without a decoder, tokens are joined by spaces that no token holds."""
    core = Tokenizer(models.WordLevel({"Let": 0, "x": 1, "<unk>": 2}, unk_token="<unk>"))
    assert not TokenText(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")).is_exact
    core.decoder = decoders.WordPiece(prefix="##")
    assert not TokenText(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")).is_exact


def test_ids_beyond_the_vocabulary_are_silent() -> None:
    """Embeddings are padded to a multiple of 64 or so; such rows can be sampled."""
    tokenizer = byte_level()
    pieces = TokenText(tokenizer)
    assert pieces[len(tokenizer) + 5] == b""
    assert pieces.decode([len(tokenizer) + 5]) == ""


def test_fingerprints_tell_vocabularies_apart() -> None:
    prints = {TokenText(make()).fingerprint for make in KINDS.values()}
    assert len(prints) == 3
    assert TokenText(byte_level()).fingerprint == TokenText(byte_level()).fingerprint


# -- StepText -----------------------------------------------------------------------------------


class Split:
    """Token i is the i-th piece of a text, as bytes."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def __getitem__(self, token_id: int) -> bytes:
        return self.parts[token_id]


def split_bytes(data: st.DataObject, text: str) -> list[bytes]:
    raw = text.encode()
    cuts = data.draw(st.sets(st.integers(1, max(1, len(raw) - 1))))
    edges = [0, *sorted(c for c in cuts if c < len(raw)), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


def run(parts: list[bytes], separator: str = "\n\n", carry: str = "") -> tuple[int | None, str]:
    """(tokens read when the step ended, text)."""
    step = StepText(Split(parts), separator, carry)  # type: ignore[arg-type]
    shown = ""
    for i in range(len(parts)):
        new, ended = step.push(i)
        shown += new
        if ended:
            assert step.finish().removesuffix("\ufffd") == shown
            return i + 1, step.finish()
    return None, step.finish()


@given(
    data=st.data(), separator=st.sampled_from(["\n\n", "\n", "\n\n\n", "</step>", "文字", "aab"])
)
def test_the_separator_is_found_however_the_text_is_cut(
    data: st.DataObject, separator: str
) -> None:
    alphabet = st.sampled_from([*separator, *"ab \n.é😀"])
    text = data.draw(st.text(alphabet, max_size=30))
    if data.draw(st.booleans()):
        text += separator + data.draw(st.text(alphabet, max_size=5))
    parts = split_bytes(data, text)
    count, got = run(parts, separator)
    at = text.encode().find(separator.encode())
    if at < 0:
        assert count is None
        assert got == text
        return
    ends = at + len(separator.encode())
    lengths = list(itertools.accumulate(map(len, parts)))
    completing = next(i for i, length in enumerate(lengths) if length >= ends)
    assert count == completing + 1
    # The tail inside the completing token belongs to the step.
    assert got == text.encode()[: lengths[completing]].decode(errors="replace")


def test_report_28() -> None:
    assert run([b"x =", b" 1.\n", b"\nNow"]) == (3, "x = 1.\n\nNow")


@pytest.mark.parametrize(
    "parts", [["a", ".\n\n"], ["a.", "\n\n\n"], ["a.", "\n\n    \n"], ["\n\n"], ["a\n", "\n"]]
)
def test_the_tail_of_the_completing_token_is_kept(parts: list[str]) -> None:
    assert run([p.encode() for p in parts]) == (len(parts), "".join(parts))


@pytest.mark.parametrize("text", ["a\r\n\r\nb", "a\n \nb", "a\n\t\nb", "a\n\u200b\nb", "\\n\\n"])
def test_what_only_looks_like_a_blank_line_is_no_separator(text: str) -> None:
    assert run([text.encode()]) == (None, text)
    assert run([c.encode() for c in text]) == (None, text)


@given(data=st.data(), separator=st.sampled_from(["\n\n", "\n\n\n", "</step>"]))
def test_a_separator_that_straddles_a_cut_step_ends_that_step_only(
    data: st.DataObject, separator: str
) -> None:
    """A limit cut a step inside its separator: the next one goes on to a separator of its own."""
    inside = data.draw(st.integers(1, len(separator) - 1))
    head = data.draw(st.text("ab ", max_size=6)) + separator[:inside]
    own = separator[inside:] + data.draw(st.text("ab ", min_size=1, max_size=6))
    parts = split_bytes(data, own + separator + "rest")
    count, got = run(parts, separator, carry=head)
    assert count is not None
    assert got.startswith(own + separator)
    assert sum(map(len, parts[: count - 1])) < len(own + separator)


def test_the_newline_that_a_limit_cut_off_does_not_make_a_blank_step() -> None:
    assert run([b"\n", b"next", b"\n\n"], carry="cut\n") == (3, "\nnext\n\n")
    assert run([b"\nnext", b".\n", b"\n"], carry="cut\n") == (3, "\nnext.\n\n")
    assert run([b"\n\n", b"\n"], carry="cut\n") == (2, "\n\n\n")  # its own, after the cut one


@pytest.mark.parametrize("carry", ["a.\n\n", "\n\n", ""])
def test_nothing_straddles_from_a_complete_step(carry: str) -> None:
    assert run([b"\nb"], carry=carry) == (None, "\nb")


def test_an_incomplete_character_at_the_end_is_replaced_once() -> None:
    assert run(["é".encode()[:1]]) == (None, "\ufffd")
    assert run([b"a", "😀".encode()[:3]]) == (None, "a\ufffd")


@given(data=st.data(), text=st.sampled_from(CORPUS))
def test_real_tokens_end_a_step_at_the_first_blank_line(data: st.DataObject, text: str) -> None:
    tokenizer = byte_level()
    pieces = TokenText(tokenizer)
    start = data.draw(st.integers(0, len(text) - 1))
    ids = tokenizer.encode(text[start:], add_special_tokens=False)
    step = StepText(pieces, "\n\n")
    used: list[int] = []
    for token in ids:
        used.append(token)
        if step.push(token)[1]:
            break
    whole = decoded(tokenizer, used)
    assert step.finish() == whole
    if "\n\n" in text[start:]:
        assert "\n\n" in whole
        assert "\n\n" not in decoded(tokenizer, used[:-1])


def test_every_double_newline_token_of_qwen_ends_a_step() -> None:
    """Tokens of Qwen2.5's vocabulary, from the most common ones to the odd."""
    for text in ("\n\n", ".\n\n", " }\n\n", "]\n\n", "。\n\n", "\n\n    \n", ".\n\n\n\n", "**\n\n"):
        assert run([b"so", text.encode()])[0] == 2
