"""Builds a tokenizer from GGUF metadata: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

Called by `load_tokenizer`. It refuses what it does not know: a wrong pre-tokenizer gives wrong ids without any error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from millstream.errors import StartupError
from millstream.text.byte_table import SPACE_MARK
from millstream.text.template_sources import DEFAULT
from millstream.text.tokenizer_data import TokenizerData

# values of tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIAL = (UNKNOWN, CONTROL)  # hidden unless a request asks for them

# ids under these keys end a generation: end of text, of turn, of message
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATE_VARIABLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # spelt so in the format
}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|"
LLAMA3_WORDS = _WORD + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
QWEN2_WORDS = _WORD + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
GPT4O_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before merges apply. Without `words`, GPT-2's own expression does it."""

    words: str | None = None  # a regular expression; each match is a word
    digits_alone: bool = False  # each digit is a word, before anything else
    nfc: bool = False  # text is composed (Unicode NFC) first
    ignore_merges: bool = False  # a word that is a token is taken whole
    add_bos: bool = False  # where the file does not say


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2"), PreTokenizer()),
    **dict.fromkeys(("smollm", "starcoder", "refact"), PreTokenizer(digits_alone=True)),
    "command-r": PreTokenizer(digits_alone=True, nfc=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), PreTokenizer(words=LLAMA3_WORDS, ignore_merges=True, add_bos=True)),
    "qwen2": PreTokenizer(words=QWEN2_WORDS, nfc=True),
    "tekken": PreTokenizer(words=TEKKEN_WORDS, ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer(words=GPT4O_WORDS),
}


def read_gguf_tokenizer(metadata: dict[str, Any]) -> TokenizerData:
    """Build the tokenizer that `metadata` (of `GGUFFile`) describes.

    Raises:
        StartupError: keys are missing or do not fit together, or the kind of tokenizer is not known.
    """
    kind = _require(metadata, "model")
    build = _BUILDERS.get(kind)
    if build is None:
        raise StartupError(
            f"the GGUF file's tokenizer is `{kind}`; {' and '.join(f'`{name}`' for name in _BUILDERS)} are supported.",
            hint="use a Hugging Face directory of the same model: its tokenizer.json is read as it is",
        )
    tokens = [str(token) for token in _require(metadata, "tokens")]
    types = [int(kind) for kind in metadata.get(_key("token_type"), [NORMAL] * len(tokens))]
    if len(types) != len(tokens):
        raise StartupError(f"the GGUF file has {len(tokens)} tokens but {len(types)} token types.")
    # an unused id is a gap in the vocabulary: it is never encoded and has no text
    assigned = [token if kind != UNUSED else None for token, kind in zip(tokens, types, strict=True)]
    encoder = build(metadata, assigned, types)
    encoder.add_tokens(_added(assigned, types, (USER_DEFINED,)))
    encoder.add_special_tokens(_added(assigned, types, SPECIAL))
    return TokenizerData(
        encoder=encoder,
        tokens=assigned,
        special_ids=frozenset(index for index, kind in enumerate(types) if kind in SPECIAL),
        eos_token_ids=frozenset(int(metadata[_key(key)]) for key in END_KEYS if _key(key) in metadata),
        special_tokens=_special_tokens(metadata, assigned),
        chat_templates=_chat_templates(metadata),
    )


def _byte_level(metadata: dict[str, Any], tokens: Sequence[str | None], types: Sequence[int]) -> Tokenizer:
    name = str(metadata.get(_key("pre"), "default"))
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise StartupError(
            f"the GGUF file's pre-tokenizer `{name}` is not known; a wrong one would give wrong token ids.",
            hint="use a Hugging Face directory of the same model: its tokenizer.json is read as it is",
        )
    vocabulary = _vocabulary(tokens)
    merges = [_pair(merge) for merge in _require(metadata, "merges")]
    try:
        encoder = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
        raise StartupError(f"the GGUF file's merges do not fit its tokens: {error}") from error
    if pre.nfc:
        encoder.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.digits_alone else []
    if pre.words is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.words), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.words is None))
    encoder.pre_tokenizer = pre_tokenizers.Sequence(steps)
    encoder.decoder = decoders.ByteLevel()
    _add_ends(encoder, metadata, tokens, add_bos=pre.add_bos)
    return encoder


def _sentencepiece(metadata: dict[str, Any], tokens: Sequence[str | None], types: Sequence[int]) -> Tokenizer:
    vocabulary = _vocabulary(tokens)
    scores = [float(score) for score in _require(metadata, "scores")]
    if len(scores) != len(tokens):
        raise StartupError(f"the GGUF file has {len(tokens)} tokens but {len(scores)} scores.")
    pieces = {token: index for index, token in enumerate(tokens) if token and types[index] == NORMAL}
    encoder = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_from_scores(pieces, scores),
            unk_token=_special_tokens(metadata, tokens).get("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    add_prefix = bool(metadata.get(_key("add_space_prefix"), True))
    spaces = normalizers.Replace(" ", SPACE_MARK)
    encoder.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces]) if add_prefix else spaces
    steps: list[Any] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    encoder.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_prefix else steps)
    _add_ends(encoder, metadata, tokens, add_bos=True)
    return encoder


_BUILDERS: dict[str, Callable[[dict[str, Any], Sequence[str | None], Sequence[int]], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _merges_from_scores(pieces: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Derive the merge order of SentencePiece BPE: of all adjacent pairs, the one whose joined piece scores highest is next.

    Each piece gives a merge for every way to cut it into two pieces, so all ways to build it stay open.
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, index in pieces.items():
        for cut in range(1, len(piece)):
            left, right = pieces.get(piece[:cut]), pieces.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], left, right, piece[:cut], piece[cut:]))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _add_ends(encoder: Tokenizer, metadata: dict[str, Any], tokens: Sequence[str | None], *, add_bos: bool) -> None:
    """Make `encode(add_special_tokens=True)` put BOS before and EOS after the text, where the file says so."""
    bos = _end(metadata, tokens, "bos", default=add_bos)
    eos = _end(metadata, tokens, "eos", default=False)
    if bos is None and eos is None:
        return
    parts = [bos[0] if bos else "", "$A", eos[0] if eos else ""]
    encoder.post_processor = processors.TemplateProcessing(
        single=[part for part in parts if part],
        pair=[part for part in (*parts, "$B") if part],
        special_tokens=[end for end in (bos, eos) if end],
    )


def _end(metadata: dict[str, Any], tokens: Sequence[str | None], name: str, *, default: bool) -> tuple[str, int] | None:
    token_id = metadata.get(_key(f"{name}_token_id"))
    if token_id is None or not metadata.get(_key(f"add_{name}_token"), default):
        return None
    token = tokens[int(token_id)] if 0 <= int(token_id) < len(tokens) else None
    return (token, int(token_id)) if token else None


def _added(tokens: Sequence[str | None], types: Sequence[int], kinds: tuple[int, ...]) -> list[AddedToken]:
    return [
        AddedToken(token, special=kinds == SPECIAL, normalized=False)
        for token, token_type in zip(tokens, types, strict=True)
        if token and token_type in kinds
    ]


def _vocabulary(tokens: Sequence[str | None]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token is not None:
            vocabulary.setdefault(token, index)
    return vocabulary


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = str(merge).partition(" ")
    if not space:
        raise StartupError(f"the GGUF file's merge `{merge}` is not a pair.")
    return left, right


def _special_tokens(metadata: dict[str, Any], tokens: Sequence[str | None]) -> dict[str, str]:
    named: dict[str, str] = {}
    for variable, key in TEMPLATE_VARIABLES.items():
        token_id = int(metadata.get(_key(key), -1))
        token = tokens[token_id] if 0 <= token_id < len(tokens) else None
        if token:
            named[variable] = token
    return named


def _chat_templates(metadata: dict[str, Any]) -> dict[str, str]:
    """`tokenizer.chat_template`, and others under `tokenizer.chat_template.NAME`."""
    found = {}
    for key, value in metadata.items():
        stem, dot, name = key.partition(TEMPLATE_KEY)
        if not stem and dot and isinstance(value, str) and (not name or name.startswith(".")):
            found[name.removeprefix(".") or DEFAULT] = value
    return found


def _key(name: str) -> str:
    return f"tokenizer.ggml.{name}"


def _require(metadata: dict[str, Any], name: str) -> Any:
    value = metadata.get(_key(name))
    if value is None:
        raise StartupError(f"the GGUF file has no `{_key(name)}`: it holds no usable tokenizer.")
    return value
