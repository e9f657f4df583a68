"""Prompts: a question through a tokenizer's chat template, as token ids."""

from __future__ import annotations

from typing import Literal

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from kvrescue.errors import ModelLoadError

__all__ = ["Template", "render_prompt"]

Template = Literal["chat", "raw"]


def render_prompt(
    tokenizer: PreTrainedTokenizerBase, question: str, system: str | None, template: Template
) -> list[int]:
    """Prompt token ids up to where the first step begins.

    "chat": system message (if any) and question through the chat template, with the generation
    prompt; "raw": the question's text alone.
    """
    if template == "raw":
        return list(tokenizer.encode(question))
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise ModelLoadError(f"the tokenizer's chat template fails: {error}") from error
    return list(tokenizer.encode(str(text), add_special_tokens=False))
