"""FastEncoder: `fastokens` in place of `tokenizers` for text to ids, where it has been seen to give the same ids.

Made once by the entry, in a thread, after it is ready: loading takes as long as the tokenizer itself took, and nothing needs to
wait for it. `tokenizers` stays the definition. The library is an optional one.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

try:
    import fastokens
except ImportError:  # no wheel for this machine
    fastokens = None

log = logging.getLogger(__name__)

Encode = Callable[[str, bool], list[int]]  # (text, add_special_tokens) -> ids

VOCABULARY_SAMPLE = 4000  # tokens whose texts are part of the proof
TRICKY = (
    "",
    " ",
    "  leading and trailing  ",
    "\t\n\r\n \n\n\n  \t x",
    "a\u00a0b\u2003c\u3000d\u200be\ufeff",
    "can't WON'T I'll we'Re o'clock 'tis",
    "1 12 123 1234 12345 3.14 1,000,000 0x1F \u0664\u0665 \u00bd \u2167",
    "e\u0301 \u00e9 \ufb01 \u1e9e \u0130 \u01c5 \u212b \uff21 \u1112\u1161\u11ab",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1eb\U0001f1f7",
    "\U0001f44d\U0001f3fd 1\ufe0f\u20e3",
    "\x00\x01\x1b[0m\x7f\x80\x9f \ufffd \ufffe \U0010ffff \ue000",
    "def f(x):\n\tif x != 0:\n\t\treturn f(x-1) # \u2192 ok\n    #include <stdio.h>\n{\"a\":[1,2,{\"b\":null}]}",
    "https://example.org/a?b=c&d=%20#e  user@example.org  C:\\path\\to  $x_1^{2}$ <|x|> <0x0A> \u2581under\u2581score",
    "a" * 300 + "\u00e4" * 100 + "!?" * 100 + " " * 100 + "\n" * 50,
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e19\u0e49\u0e33",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u0627\u0644\u0633\u0651\u0644\u0627\u0645",
)  # fmt: skip


class FastEncoder:
    """A loaded and proven `fastokens` tokenizer."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def encode(self, text: str, add_special_tokens: bool) -> list[int] | None:
        """The ids of `text`; None where the library gives up, which is not a fault of the text. Other threads run meanwhile."""
        try:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=add_special_tokens).ids
        except (ValueError, RuntimeError):
            log.warning("fastokens gave up on a text of %d characters; tokenizers takes it", len(text))
            return None
        return ids


def load_fast_encoder(description: str, reference: Encode, texts: Sequence[str]) -> FastEncoder | None:
    """Load the tokenizer that `description` (the text of a tokenizer.json) defines and compare it with `reference`.

    It is compared on `texts`, in several normal forms, and on what is known to be tricky. None where a single id differs, or
    where the library is missing or does not take the description.
    """
    if fastokens is None:
        log.info("fastokens is not installed; text is encoded with tokenizers")
        return None
    try:
        encoder = FastEncoder(fastokens.Tokenizer.from_json_str(description))
    except (ValueError, RuntimeError) as error:
        log.info("fastokens does not take this tokenizer (%s); text is encoded with tokenizers", error)
        return None
    for text in _proof(texts):
        for add_special_tokens in (False, True):
            if encoder.encode(text, add_special_tokens) != reference(text, add_special_tokens):
                log.warning("fastokens gives other ids for this tokenizer; text is encoded with tokenizers")
                return None
    return encoder


def _proof(texts: Sequence[str]) -> Iterator[str]:
    for text in (*TRICKY, *texts):
        yield text
        if not text.isascii():
            yield unicodedata.normalize("NFD", text)
            yield unicodedata.normalize("NFKC", text)
