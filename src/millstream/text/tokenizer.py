"""Tokenizer: text to ids and ids to text for one model, and the facts around it. The one loader for every process.

The entry encodes, the scheduler and the detokenizer decode. Loading happens once a process; afterwards nothing changes but
that the entry's encoder becomes a faster one with the same ids, so threads may share it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from importlib import resources
from typing import Any

import tokenizers

from millstream.checkpoint.gguf import GGUFFile
from millstream.checkpoint.locate import ModelSource
from millstream.config import ServerConfig
from millstream.errors import RequestError
from millstream.text.byte_table import SPACE_MARK, ByteTable, build_byte_table, byte_of
from millstream.text.chat_template import ChatTemplate
from millstream.text.control_text import ControlText
from millstream.text.fast_encoder import VOCABULARY_SAMPLE, FastEncoder, load_fast_encoder
from millstream.text.gguf_tokenizer import read_gguf_tokenizer
from millstream.text.huggingface_tokenizer import read_huggingface_tokenizer, special_ids, token_list
from millstream.text.incremental import ByteDecoder, IncrementalDecoder, WindowDecoder
from millstream.text.template_sources import DEFAULT, builtin_template, choose_templates
from millstream.text.token_bytes import ByteReader, TokenBytes, TokenReader, WindowReader
from millstream.text.tokenizer_data import TokenizerData

log = logging.getLogger(__name__)

SAMPLE_STRIDE = 61  # every 61st id is compared at load: 800 of 49,152


class Tokenizer:
    """One model's tokenizer. Ids 0..`vocab_size` - 1 decode; any other id contributes nothing and never raises.

    `eos_token_ids` joins the tokenizer's, the configs' and the token that the chat template writes right after an assistant
    message. `special_tokens` and `chat_templates`, by name, are what `ChatPrompts` is made from. `single` says what a token is
    by itself.

    About `spaces_between_special_tokens`, here and in `incremental`: it has no effect. It belongs to tokenizers that put a
    space of their own around a shown special token; `tokenizers` has none of those, and text is what the ids say, so no space
    is ever added or removed for it. Both values give the same text.
    """

    def __init__(self, data: TokenizerData) -> None:
        self._encoder = data.encoder
        self.vocab_size = len(data.tokens)
        self.chat_templates = data.chat_templates
        self.special_tokens = data.special_tokens
        self._special_ids = data.special_ids
        self._shown_ids = frozenset(token_id for token_id, token in enumerate(data.tokens) if token is not None)
        self._text_ids = self._shown_ids - data.special_ids
        self._table = self._checked_table(data)
        self.single = TokenBytes(data.tokens, data.special_ids, self._table, continuation_mark=_continuation_mark(data.encoder))
        self._fast: FastEncoder | None = None
        self.eos_token_ids = data.eos_token_ids | self._end_of_turn_ids()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens written in it become their ids. Other threads run meanwhile.

        `add_special_tokens` puts the model's BOS and EOS around it, where it has them; False for a rendered chat template.

        Raises:
            RequestError: the text has a lone surrogate, which no encoding of text allows.
        """
        if self._fast is not None and (ids := self._fast.encode(text, add_special_tokens)) is not None:
            return ids
        return self._library_encode(text, add_special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The template for any conversation, if the model has one."""
        return self.chat_templates.get(DEFAULT)

    @property
    def encoder_name(self) -> str:
        """The library that turns text into ids now."""
        return "tokenizers" if self._fast is None else "fastokens"

    @property
    def decoder_name(self) -> str:
        """How ids become text: by the "byte table", or by a "window" of tokens that the library decodes."""
        return "byte table" if self.has_byte_table else "window"

    @property
    def has_byte_table(self) -> bool:
        """Whether each id is a string of bytes, whatever stands beside it."""
        return self._table is not None

    def load_fast_encoder(self) -> None:
        """Encode with `fastokens` from now on, if it is there and gives the same ids. Takes seconds, in a thread."""
        tokens = [self._encoder.id_to_token(token_id) for token_id in sorted(self._special_ids)[:32]]
        stride = self.vocab_size // VOCABULARY_SAMPLE + 1
        words = [self.decode([token_id]) for token_id in range(0, self.vocab_size, stride)]
        texts = [*scripted_text().splitlines(keepends=True), scripted_text(), "".join(words), " ".join(words)]
        texts.append("".join(f"x {token} y{token}" for token in tokens if token))
        self._fast = load_fast_encoder(self._encoder.to_str(), self._library_encode, texts)

    def _library_encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            # a batch of one: unlike `encode`, it lets go of the interpreter lock
            encoding = self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except TypeError as error:
            raise RequestError("the text has a lone surrogate; it is not valid Unicode.") from error
        return list(encoding.ids)

    def control_text(self, rendered: str, looked_for: frozenset[str]) -> ControlText:
        """What messages may not write as control tokens: the special ones, and the marks of turns in a `rendered` conversation.

        Some vocabularies have such marks among their other added tokens. What a template itself looks for in messages,
        `looked_for`, is none: it has to see it.
        """
        marks = {
            token_id
            for token_id, token in self._encoder.get_added_tokens_decoder().items()
            if token.content in rendered and _reads_like_mark(token.content) and token.content not in looked_for
        }
        return ControlText(self._encoder, self._special_ids | marks, self.vocab_size)

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Return the text of `token_ids`: the definition that every stream of the same ids must equal."""
        decoder = self.incremental(
            skip_special_tokens=skip_special_tokens, spaces_between_special_tokens=spaces_between_special_tokens
        )
        return decoder.push(token_ids) + decoder.flush()

    def incremental(
        self, *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> IncrementalDecoder:
        """Return a fresh decoder for one output."""
        del spaces_between_special_tokens  # no effect: see the class
        if self._table is not None:
            return ByteDecoder(self._table, skip_special_tokens=skip_special_tokens)
        visible = self._text_ids if skip_special_tokens else self._shown_ids
        return WindowDecoder(lambda ids: self._library_decode(ids, skip_special_tokens), visible=visible)

    def reader(self, *, skip_special_tokens: bool = True) -> TokenReader:
        """Return a fresh reader of the places of one text's tokens."""
        if self._table is not None:
            return ByteReader(self._table, skip_special_tokens=skip_special_tokens)
        return WindowReader(self.incremental(skip_special_tokens=skip_special_tokens))

    def _library_decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self._encoder.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _checked_table(self, data: TokenizerData) -> ByteTable | None:
        """The byte table, if this tokenizer's decoder is one and a sample of ids decodes as the library decodes it."""
        form = _decoder_form(self._encoder)
        prefixed = self._prefixes_after_special()
        table = build_byte_table(form, data.tokens, data.special_ids, strip_after_special=prefixed)
        if table is None:
            return None
        # byte tokens are left out: there the library turns valid characters into U+FFFD once a later byte is bad
        sample = [i for i in range(0, len(data.tokens), SAMPLE_STRIDE) if not byte_of(data.tokens[i] or "")]
        for skip_special_tokens in (True, False) if not prefixed else (True,):
            decoder_under_test = ByteDecoder(table, skip_special_tokens=skip_special_tokens)
            text = decoder_under_test.push(sample) + decoder_under_test.flush()
            if text != self._library_decode(sample, skip_special_tokens):
                log.warning("this tokenizer does not decode as its description says; using the slower window decoder")
                return None
        return table

    def _prefixes_after_special(self) -> bool:
        """Whether encoding puts a dummy space after a control token."""
        special = self._encoder.id_to_token(min(self._special_ids)) if self._special_ids else None
        tokens = self._encoder.encode(f"{special}x", add_special_tokens=False).tokens if special else []
        # the mark itself, or the first of its bytes in a vocabulary without it
        return len(tokens) > 1 and (tokens[1].startswith(SPACE_MARK) or byte_of(tokens[1]) == SPACE_MARK.encode()[:1])

    def _end_of_turn_ids(self) -> frozenset[int]:
        """The special token that the chat template writes right after an assistant message's content."""
        if self.chat_template is None:
            return frozenset()
        closing = ChatTemplate(self.chat_template, self.special_tokens).closing_text.lstrip()
        ids = self.encode(closing, add_special_tokens=False) if closing else []
        return frozenset(ids[:1]) & self._special_ids


def _reads_like_mark(token: str) -> bool:
    """`<|im_start|>` does; a word or white space, which some vocabularies add as well, does not."""
    return len(token) > 2 and not any(map(str.isspace, token)) and not token[0].isalnum() and not token[-1].isalnum()


def _decoder_form(encoder: tokenizers.Tokenizer) -> dict[str, Any] | None:
    decoder = encoder.decoder
    return None if decoder is None else json.loads(decoder.__getstate__())


def _continuation_mark(encoder: tokenizers.Tokenizer) -> str:
    """What the later parts of a word begin with in a WordPiece vocabulary."""
    form = _decoder_form(encoder) or {}
    return str(form["prefix"]) if form.get("type") == "WordPiece" else ""


def load_configured_tokenizer(config: ServerConfig, source: ModelSource | None) -> Tokenizer:
    """Load the tokenizer that the options ask for, of `source`, which `configured_source` found. All three processes call
    this, so that they agree on it.

    Raises:
        StartupError: tokenizer or chat template cannot be read, or are of a kind that is not supported.
    """
    data = _scripted_data() if source is None else _read_data(source)
    templates = choose_templates(config.chat_template, data.chat_templates)
    return Tokenizer(dataclasses.replace(data, chat_templates=templates))


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Load the tokenizer of a model, with its own chat templates.

    Raises:
        StartupError: it is missing, broken or of a kind that is not supported.
    """
    return Tokenizer(_read_data(source))


def load_scripted_tokenizer(*, chat_template: str | None = None) -> Tokenizer:
    """Load the small byte-level tokenizer that comes with the package, with a ChatML template.

    Raises:
        StartupError: `chat_template`, given in its place, is not valid.
    """
    data = _scripted_data()
    return Tokenizer(data if chat_template is None else dataclasses.replace(data, chat_templates={DEFAULT: chat_template}))


def _read_data(source: ModelSource) -> TokenizerData:
    if source.kind == "gguf":
        return read_gguf_tokenizer(GGUFFile(source.path).metadata)
    return read_huggingface_tokenizer(source.path)


def _scripted_data() -> TokenizerData:
    encoder = tokenizers.Tokenizer.from_str(_asset("scripted_tokenizer.json"))
    tokens = token_list(encoder)
    return TokenizerData(
        encoder=encoder,
        tokens=tokens,
        special_ids=special_ids(encoder),
        eos_token_ids=frozenset({tokens.index("<|im_end|>"), tokens.index("<|endoftext|>")}),
        special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        chat_templates={DEFAULT: builtin_template("chatml")},
    )


def scripted_text() -> str:
    """Return the text in many languages that the scripted tokenizer was trained on."""
    return _asset("multilingual.txt")


def _asset(name: str) -> str:
    return (resources.files("millstream.text") / "assets" / name).read_text(encoding="utf-8")
