"""The tokenizer of the tiny trio: one token per word of the shopping bill, bytes for all else.

Every word of the task carries its own spaces, so text survives a round trip unchanged, and a price
is the token right after its item (" 12" with its space), which makes a look-up a plain "what
followed this word before?".

The words are added tokens on top of an otherwise bare byte-level Qwen2 tokenizer, because
transformers 5 loads every checkpoint of model type "qwen2" with `Qwen2Tokenizer`, whatever class
its tokenizer_config.json names; a tokenizer of any other kind would be silently rebuilt as that.
"""

from __future__ import annotations

from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Tokenizer

from kvrescue.evaluation.bill import ITEMS, MAX_INDEX, MAX_PRICE, MAX_TOTAL, NAMES, PAY
from kvrescue.types import SEPARATOR

END_OF_TEXT = "<|endoftext|>"
PROMPT_START = "<|im_start|>"
PROMPT_END = "<|im_end|>"
STEP_END = "<extra_0>"
SPECIAL = (END_OF_TEXT, PROMPT_START, PROMPT_END, STEP_END)

PHRASES = (
    *("To do for ", ": ", "Prices: ", ". ", ", ", "How many coins does ", " pay?"),
    *(" +", " = ", ".", SEPARATOR, PAY, " \\boxed{", "}"),
)
NUMBERS = tuple(str(number) for number in range(MAX_TOTAL + 1))
PRICES = tuple(f" {price}" for price in range(1, MAX_PRICE + 1))
INDICES = tuple(f"#{index} " for index in range(1, MAX_INDEX + 1))
WORDS = (*PHRASES, *NUMBERS, *PRICES, *INDICES, *ITEMS, *NAMES)

_BYTES = tuple(sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(WORDS)))
VOCABULARY = (*SPECIAL, *WORDS, *_BYTES)
TOKEN_ID = {token: token_id for token_id, token in enumerate(VOCABULARY)}
SEPARATOR_ID = TOKEN_ID[SEPARATOR]
STEP_END_ID = TOKEN_ID[STEP_END]
END_OF_TEXT_ID = TOKEN_ID[END_OF_TEXT]

PROMPT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}"
    "{{ '<|im_start|>' + message['content'] + '<|im_end|>' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
)
"""The question between its two marks, then the solution. A system message is ignored, and the
generation prompt is empty: the solution starts right after the closing mark."""


def build_tokenizer() -> Qwen2Tokenizer:
    """Build the tokenizer that all three models share."""
    tokenizer = Qwen2Tokenizer(
        vocab=dict(TOKEN_ID),
        merges=[],
        unk_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[PROMPT_START, PROMPT_END, STEP_END],
        chat_template=PROMPT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    return tokenizer
