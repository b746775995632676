"""API keys from files. Read once, by the command, before any process starts."""

from __future__ import annotations

import dataclasses
import os.path
from pathlib import Path

from millstream.config import EMBEDDED_MODEL, ServerConfig
from millstream.errors import StartupError


def with_keys_of_files(config: ServerConfig) -> ServerConfig:
    """The configuration with the keys of its key files beside those it has.

    Raises:
        StartupError: a file cannot be read, or has no key; or a key must be the model, which an option of several values took.
    """
    for key in config.api_key + config.admin_api_key:
        if key == EMBEDDED_MODEL or os.path.exists(key):
            raise StartupError(
                "an API key is the name of a model or file", hint="name the model before the keys, or by --model"
            )
    return dataclasses.replace(
        config,
        api_key=config.api_key + _read(config.api_key_file, "api_key_file"),
        admin_api_key=config.admin_api_key + _read(config.admin_api_key_file, "admin_api_key_file"),
    )


def _read(path: str | None, option: str) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{option}: `{path}` cannot be read: {error}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise StartupError(f"{option}: `{path}` has no key", hint="one key a line; lines that begin with # are comments")
    return keys
