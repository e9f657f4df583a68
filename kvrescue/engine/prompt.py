"""Prompts: a question through a tokenizer's chat template, as token ids; text that stays text.

Whoever writes a question or a step must not be able to close its turn, or to add a place where a
reward model is read, by spelling a special token. So a special token's string inside such text is
encoded as the characters it consists of. Everything else is encoded as the tokenizer does it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from kvrescue.engine.choices import Template
from kvrescue.errors import ModelLoadError

__all__ = ["encode_text", "render_prompt"]

_MARK = "\ue000\ue001{}\ue001\ue000"
"""Stands for the i-th special token's string while a template is rendered (private-use area)."""
_MARKED = re.compile("\ue000\ue001(\\d+)\ue001\ue000")


def encode_text(
    tokenizer: PreTrainedTokenizerBase, text: str, reserved: Sequence[str] = ()
) -> list[int]:
    """Token ids of `text` without any special token or `reserved` string among them."""
    return _encode(tokenizer, _mask(tokenizer, text, reserved), reserved, add_special_tokens=False)


def render_prompt(
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    system: str | None,
    template: Template,
    reserved: Sequence[str] = (),
) -> list[int]:
    """Prompt token ids up to where the first step begins.

    "chat": system message (if any) and question through the chat template, with the generation
    prompt; "raw": the question's text alone (with what the tokenizer itself puts around a text).
    """
    masked = _mask(tokenizer, question, reserved)
    if template == "raw":
        return _encode(tokenizer, masked, reserved, add_special_tokens=True)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": masked})
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError) as error:
        raise ModelLoadError(f"the tokenizer's chat template fails: {error}") from error
    return _encode(tokenizer, str(text), reserved, add_special_tokens=False)


def _strings(tokenizer: PreTrainedTokenizerBase, reserved: Sequence[str]) -> list[str]:
    """Special tokens' strings, longest first, so that none is hidden by a shorter one."""
    added = (str(t) for t in tokenizer.added_tokens_decoder.values() if t.special)
    strings = {*map(str, tokenizer.all_special_tokens), *added, *reserved} - {""}
    return sorted(strings, key=lambda s: (-len(s), s))


def _mask(tokenizer: PreTrainedTokenizerBase, text: str, reserved: Sequence[str]) -> str:
    """`text` with special tokens' strings replaced by marks; marks of its own are removed."""
    while _MARKED.search(text):
        text = _MARKED.sub("", text)
    strings = _strings(tokenizer, reserved)
    if not any(s in text for s in strings):
        return text
    pattern = re.compile("|".join(map(re.escape, strings)))
    return pattern.sub(lambda match: _MARK.format(strings.index(match[0])), text)


def _encode(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    reserved: Sequence[str],
    *,
    add_special_tokens: bool,
) -> list[int]:
    """Token ids of a text with marks."""
    parts = _MARKED.split(text)
    if len(parts) == 1:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    strings = _strings(tokenizer, reserved)
    ids: list[int] = []
    for i, part in enumerate(parts):
        ids += (
            _spelled(tokenizer, strings[int(part)], strings)
            if i % 2
            else list(tokenizer.encode(part, add_special_tokens=False))
        )
    if add_special_tokens:
        before, after = _frame(tokenizer)
        ids = [*before, *ids, *after]
    return ids


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the tokenizer itself puts before and after a text."""
    plain = list(tokenizer.encode("a", add_special_tokens=False))
    framed = list(tokenizer.encode("a"))
    for start in range(len(framed) - len(plain) + 1):
        end = start + len(plain)
        if plain and framed[start:end] == plain:
            return framed[:start], framed[end:]
    return [], []


def _spelled(tokenizer: PreTrainedTokenizerBase, string: str, strings: Sequence[str]) -> list[int]:
    """A special token's string as ordinary tokens; what has no such tokens is left out."""
    special = {tokenizer.convert_tokens_to_ids(s) for s in strings}
    for pieces in ((string,), (string[:1], string[1:]), tuple(string)):
        ids = [
            i
            for piece in pieces
            if piece
            for i in tokenizer.encode(piece, add_special_tokens=False, split_special_tokens=True)
        ]
        if not special & set(ids):
            return ids
    return [i for i in ids if i not in special]
