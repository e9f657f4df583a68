"""Decoded text, token by token: what a token adds, and where a step ends.

The step boundary is decided on text because one token may hold it (".\n\n" is one token of
Qwen's vocabulary) or two may share it. Token ids are never re-encoded from text.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase

__all__ = ["StepText", "TokenText"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPREAD = 500
_PROBE = "Let x = 3.\n\nThen  $\\frac{1}{2}$ é 文 😀 #1 kale 4.\n\n0 + 4 = 4."


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable bytes stand for themselves, the rest are
    numbered from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    rest = (b for b in range(256) if b not in set(printable))
    table.update({chr(256 + i): b for i, b in enumerate(rest)})
    return table


class TokenText:
    """Bytes that each token id stands for.

    Exact for byte-level BPE, sentencepiece-style and word-level fast tokenizers; any other
    tokenizer is refused by `check`. Special tokens are silent.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._special = {i for i, t in added.items() if t.special} | set(tokenizer.all_special_ids)
        decoder = json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder") or {}
        kinds = {decoder.get("type")} | {d.get("type") for d in decoder.get("decoders", [])}
        self._alphabet = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._metaspace = bool(kinds & {"Metaspace", "Replace"})
        self._cache: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._piece(token_id)
        return piece

    def _piece(self, token_id: int) -> bytes:
        if token_id in self._special:
            return b""
        token = self.tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):  # padding rows of the embedding have no text
            return b""
        if self._alphabet is not None:
            if all(c in self._alphabet for c in token):
                return bytes(self._alphabet[c] for c in token)
            return token.encode()  # an added token, stored as plain text
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match.group(1), 16)])
        return (token.replace("\u2581", " ") if self._metaspace else token).encode()

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, specials skipped, invalid UTF-8 replaced."""
        return b"".join(self[i] for i in ids).decode(errors="replace")

    @cached_property
    def is_exact(self) -> bool:
        """Whether a mixed probe text, and tokens from all over the vocabulary, decode to what the
        tokenizer itself decodes them to."""
        probe = self.tokenizer.encode(_PROBE, add_special_tokens=False)
        size = len(self.tokenizer)
        spread = [i for i in range(0, size, max(1, size // _SPREAD)) if self._is_text(i)]
        return bool(spread) and all(self._decodes_alike(ids) for ids in (probe, spread))

    def _is_text(self, token_id: int) -> bool:
        """Whether a token is more than silence or part of a character."""
        try:
            return self[token_id].decode() != ""
        except UnicodeDecodeError:
            return False

    def _decodes_alike(self, ids: list[int]) -> bool:
        expected = self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return self.decode(ids).removeprefix(" ") == str(expected).removeprefix(" ")

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give every id the same token, so that ids may travel."""
        vocab = sorted((i, t) for t, i in self.tokenizer.get_vocab().items())
        return hashlib.blake2b(repr(vocab).encode(), digest_size=8).hexdigest()


class StepText:
    """Text of a candidate as it grows; `push` says whether the separator is now complete.

    `carry` is the text that precedes the candidate and may hold the separator's beginning (the
    end of a step that was cut by a limit). A separator that begins there ends that step, not this
    one: else a candidate would be over, and blank, with the newline that the limit cut off.
    """

    def __init__(self, pieces: TokenText, separator: str, carry: str = "") -> None:
        self._pieces = pieces
        self._separator = separator
        self._tail = carry[-(len(separator) - 1) :] if len(separator) > 1 else ""
        if separator in carry[-len(separator) :]:
            self._tail = ""
        self._carried = len(self._tail)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []

    def push(self, token_id: int) -> tuple[str, bool]:
        """Characters that the token completed, and whether the step ends here."""
        new = self._utf8.decode(self._pieces[token_id])
        if not new:
            return "", False
        self._parts.append(new)
        window, size = self._tail + new, len(self._separator)
        if 0 <= (at := window.find(self._separator)) < self._carried:
            window, self._carried = window[at + size :], 0  # what the last step ended with
        self._tail = window[-(size - 1) :] if size > 1 else ""
        self._carried = max(0, self._carried - (len(window) - len(self._tail)))
        return new, self._separator in window

    def finish(self) -> str:
        """The candidate's text; an incomplete character at the end is replaced."""
        rest, _ = self._utf8.getstate()
        return "".join(self._parts) + rest.decode(errors="replace")
