"""Tiny tokenizers of the three supported kinds, trained in the test on a small text."""

from __future__ import annotations

import functools

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = (
    "Let x = 3.\n\nThen we add 4 and get 7.\n\nSo the answer is 7.\n\n",
    "First, 12 apples.\n\n\nNow  we eat 5 of them;\n\nleaving 7:\n\n$$x = 7$$\n\n",
    "文文字字 漢字です。\n\nこれは。\n\n😀😃 é è ü ñ \\boxed{7}\n\n\r\n\r\nend\n \nend",
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def wrap(core: Tokenizer, **kwargs: object) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|endoftext|>",
        extra_special_tokens=list(SPECIALS[1:]),
        chat_template=CHAT_TEMPLATE,
        **kwargs,
    )


@functools.cache
def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE with Qwen's split; ".\\n\\n" and ":\\n\\n" become single tokens."""
    from tokenizers import Regex

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS * 3, trainer)
    tokenizer = wrap(core)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("caffè latte")])
    return tokenizer


@functools.cache
def sentencepiece() -> PreTrainedTokenizerFast:
    """Llama-like: spaces as U+2581, unknown characters as bytes."""
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    core.normalizer = normalizers.Replace(" ", "\u2581")
    core.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    core.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", *SPECIALS, *(f"<0x{b:02X}>" for b in range(256))],
        show_progress=False,
    )
    core.train_from_iterator([c for c in CORPUS if "文" not in c], trainer)
    core.add_tokens([])
    return wrap(_plain_bytes(core), unk_token="<unk>")


def _plain_bytes(core: Tokenizer) -> Tokenizer:
    """Byte tokens as ordinary vocabulary, as in a converted sentencepiece model."""
    import json

    data = json.loads(core.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


@functools.cache
def word_level() -> PreTrainedTokenizerFast:
    """One token per word or single character; the decoder joins without spaces."""
    words = ["Let", " x", " =", " 3", ".\n\n", "\n", "\n\n", ".", "So", " é", "文", "😀"]
    vocab = {t: i for i, t in enumerate([*SPECIALS, "<unk>", *words])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    core.decoder = decoders.Fuse()
    return wrap(core, unk_token="<unk>")
