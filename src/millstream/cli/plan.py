"""`millstream serve --dry-run`: what a start would do and take, without loading weights or binding a port."""

from __future__ import annotations

from typing import Any

from millstream.checkpoint.locate import ModelSource, configured_source
from millstream.checkpoint.weights import load_model_config
from millstream.config import ServerConfig
from millstream.entry.process import load_text
from millstream.execution.machine import machine_memory
from millstream.execution.registry import plan_executor
from millstream.ipc.address import entry_name

MIB = 1 << 20
# beside weights and KV, as measured with a model of 49,152 tokens: interpreter, libraries, tokenizer
SUPERVISOR_BYTES = 20 * MIB
PROCESS_BYTES = 85 * MIB  # each of the others, as a mean
TORCH_BYTES = 200 * MIB


def make_plan(config: ServerConfig, given: dict[str, tuple[Any, str]]) -> dict[str, Any]:
    """The plan as JSON has it; sizes in bytes. `given`: options that are no defaults, each with where it came from.

    Raises:
        StartupError: the server could not start.
    """
    source = configured_source(config)
    executor = plan_executor(config, source)
    text = load_text(config)  # a tokenizer or chat template that cannot be used is found here
    tokens = executor.num_pages * executor.page_size
    context_length = min(executor.context_length, tokens)
    processes = ["supervisor", *map(entry_name, range(config.entry_workers)), "scheduler", "detokenizer"]
    memory = {
        "weights": executor.weight_bytes,
        "kv_cache": tokens * executor.kv_bytes_per_token,
        "processes": SUPERVISOR_BYTES + (len(processes) - 1) * PROCESS_BYTES + (TORCH_BYTES if executor.name == "torch" else 0),
    }
    return {
        "model": _model(source) | {"names": list(text.names), "vocab_size": text.tokenizer.vocab_size},
        "executor": {
            "name": executor.name,
            "what": executor.what,
            "why_not_native": executor.why_not_native,
            "threads": executor.threads,
            "on_gpu": executor.on_gpu,
        },
        "context_length": context_length,
        "kv_cache": {
            "pages": executor.num_pages,
            "page_size": executor.page_size,
            "tokens": tokens,
            "dtype": executor.kv_dtype,
            "bytes_per_token": executor.kv_bytes_per_token,
            "full_contexts": tokens // context_length,
        },
        "concurrency": {
            "running": config.max_running_requests,
            "queued": config.max_queued_requests,
            "live": config.live_limit,
            "tokens_a_step": config.chunked_prefill_size,
        },
        "processes": processes,
        "address": {"host": config.host, "port": config.port},
        "memory": memory | {"total": sum(memory.values()), "machine": machine_memory()},
        "options": {name: {"value": value, "source": where} for name, (value, where) in given.items()},
    }


def plan_text(plan: dict[str, Any]) -> str:
    """The plan for people."""
    model, executor, kv, memory = plan["model"], plan["executor"], plan["kv_cache"], plan["memory"]
    concurrency, address = plan["concurrency"], plan["address"]
    why = "" if executor["why_not_native"] is None else f"; not native, because {executor['why_not_native']}"
    pages = (
        f"{kv['tokens']:,} tokens in {kv['pages']:,} pages of {kv['page_size']}, {kv['dtype']}, {size_text(memory['kv_cache'])}"
    )
    facts = {
        "model": model["names"][0] if model["path"] is None else f"{model['names'][0]}, {model['path']}",
        "": ""
        if model["path"] is None
        else f"{model['architecture']}, {model['layers']} layers, {size_text(memory['weights'])}",
        "executor": f"{executor['what']}{why}",
        "context": f"{plan['context_length']:,} tokens",
        "KV cache": f"{pages}: {kv['full_contexts']} full contexts",
        "requests": f"{concurrency['running']:,} run, {concurrency['queued']:,} wait, {concurrency['live']:,} in the entry",
        "step": f"{concurrency['tokens_a_step']:,} tokens",
        "processes": ", ".join(plan["processes"]),
        "address": f"{address['host']}:{address['port'] or 'a free port'}",
        "memory": f"about {size_text(memory['total'])} of {size_text(memory['machine'])}",
    }
    lines = [f"{name.ljust(9)}  {fact}" for name, fact in facts.items() if fact]
    for name, each in plan["options"].items():
        lines.append(f"{'option'.ljust(9)}  {name} = {_value(each['value'])}  ({each['source']})")
    return "\n".join(lines) + "\n"


def _model(source: ModelSource | None) -> dict[str, Any]:
    if source is None:
        return {"path": None, "architecture": None, "layers": None, "context_length": None}
    model = load_model_config(source)
    return {
        "path": str(source.path),
        "architecture": model.architecture,
        "layers": model.num_layers,
        "context_length": model.context_length,
    }


def size_text(size: int) -> str:
    """Bytes in a form to read at a glance."""
    return f"{size / (1 << 30):,.1f} GiB" if size >= 1 << 30 else f"{size / MIB:,.0f} MiB"


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
