"""Reads the tokenizer of a Hugging Face model directory.

Called by `load_tokenizer`. `tokenizer.json` makes the encoder; the small JSON files beside it name the special tokens, the
end tokens and the chat template. No code of the model is ever run.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from millstream.errors import StartupError
from millstream.text.template_sources import DEFAULT, named_templates, read_template
from millstream.text.tokenizer_data import TokenizerData

log = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILES = (
    "chat_template.jinja",
    "chat_template.json",
)  # the default one; the second with models of several kinds of input
MORE_TEMPLATES = "additional_chat_templates"  # a folder of others, named as their files


def read_huggingface_tokenizer(directory: Path) -> TokenizerData:
    """Read the tokenizer in `directory`.

    Raises:
        StartupError: `tokenizer.json` is missing, or a file is not what its name says.
    """
    encoder = _read_encoder(directory / TOKENIZER_FILE)
    encoder.no_truncation()  # set for training in some files; a prompt is never cut silently
    encoder.no_padding()
    tokens = token_list(encoder)
    config = _read_json(directory / "tokenizer_config.json")
    special_tokens = _special_tokens({**_read_json(directory / "special_tokens_map.json"), **config})
    end_ids = _ids(_read_json(directory / "config.json")) | _ids(_read_json(directory / "generation_config.json"))
    eos_id = encoder.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return TokenizerData(
        encoder=encoder,
        tokens=tokens,
        special_ids=special_ids(encoder),
        eos_token_ids=end_ids | ({eos_id} if eos_id is not None else frozenset()),
        special_tokens=special_tokens,
        chat_templates=_chat_templates(directory, config),
    )


def token_list(encoder: Tokenizer) -> list[str | None]:
    """Each id's token, None where the vocabulary has a gap."""
    vocabulary = encoder.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens


def special_ids(encoder: Tokenizer) -> frozenset[int]:
    """Ids of the added tokens that are marked special."""
    return frozenset(token_id for token_id, token in encoder.get_added_tokens_decoder().items() if token.special)


def _read_encoder(path: Path) -> Tokenizer:
    if not path.is_file():
        raise StartupError(
            f"`{path.parent}` has no {TOKENIZER_FILE}.",
            hint="convert the tokenizer once: transformers' AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a bad file
        raise StartupError(f"`{path}` is not a usable tokenizer: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"cannot read `{path}`: {error}") from error
    if not isinstance(value, dict):
        raise StartupError(f"`{path}` must hold a JSON object.")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and the like, which are written as a string or as a serialised token."""
    named: dict[str, str] = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            named[key] = text
    return named


def _ids(config: dict[str, Any]) -> frozenset[int]:
    """`eos_token_id` as a set; models of several parts keep it under `text_config`."""
    value = config.get("eos_token_id")
    if value is None and isinstance(config.get("text_config"), dict):
        value = config["text_config"].get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if isinstance(item, int))


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Files take precedence over the field of tokenizer_config.json, as a whole."""
    files = {path.stem: path for path in sorted((directory / MORE_TEMPLATES).glob("*.jinja"))}
    main = next((path for name in TEMPLATE_FILES if (path := directory / name).is_file()), None)
    if main is not None:
        files[DEFAULT] = main
    templates = {name: read_template(path) for name, path in files.items()} or named_templates(config.get("chat_template"))
    if templates and DEFAULT not in templates:
        log.warning("no chat template of %s is named `default`; choose one with --chat-template", directory)
    return templates
