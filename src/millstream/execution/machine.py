"""What this machine has, and what an executor makes of it: its KV pool, its limits. Called as executors load a model."""

from __future__ import annotations

import os
from pathlib import Path

from millstream.checkpoint.config import ModelConfig
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Capabilities

DEFAULT_CONTEXTS = 8
MAX_DEFAULT_BYTES = 2 << 30
MEMORY_SHARE = 4  # the default pool takes a quarter of memory at most


def context_limit(config: ServerConfig, model: ModelConfig) -> int:
    """Return the tokens a request may have: the model's limit, or the smaller one that was asked for.

    Raises:
        StartupError: more was asked for than the model takes.
    """
    wanted = config.context_length or model.context_length
    if wanted > model.context_length:
        raise StartupError(
            f"context_length is {wanted}; this model takes at most {model.context_length} tokens.",
            hint="leave --context-length out",
        )
    return wanted


def asked_pages(config: ServerConfig) -> int | None:
    """Return the pages that `max_total_tokens` asks for; None where it asks for nothing.

    Raises:
        StartupError: it is less than one page.
    """
    if config.max_total_tokens is None:
        return None
    if config.max_total_tokens < config.page_size:
        raise StartupError(f"max_total_tokens is {config.max_total_tokens}, less than one page of {config.page_size} tokens.")
    return config.max_total_tokens // config.page_size


def pool_pages(config: ServerConfig, *, context_length: int, bytes_per_token: int, memory: int) -> int:
    """Return the pages of the pool: what was asked for, or 8 contexts within a quarter of `memory` (bytes) and 2 GiB.

    Raises:
        StartupError: it would be none.
    """
    asked = asked_pages(config)
    if asked is not None:
        return asked
    budget = min(MAX_DEFAULT_BYTES, memory // MEMORY_SHARE)
    total_tokens = min(DEFAULT_CONTEXTS * context_length, budget // bytes_per_token)
    if total_tokens < config.page_size:
        raise StartupError(f"max_total_tokens is {total_tokens}, less than one page of {config.page_size} tokens.")
    return total_tokens // config.page_size


def capabilities_of(
    config: ServerConfig, model: ModelConfig, *, context_length: int, num_pages: int, executor: str
) -> Capabilities:
    """Say what the executor of that name is and can hold, once it has loaded `model`."""
    return Capabilities(
        vocab_size=model.vocab_size,
        context_length=context_length,
        num_pages=num_pages,
        page_size=config.page_size,
        eos_token_ids=model.eos_token_ids,
        executor=executor,
        hidden_size=model.hidden_size,
        has_logprobs=True,
        has_masks=True,
    )


def machine_memory() -> int:
    """Return the bytes of memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def num_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu_driver() -> bool:
    """Whether an NVIDIA driver is there. Asks the file system: to ask torch would take seconds and 200 MB."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
