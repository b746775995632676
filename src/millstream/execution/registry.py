"""load_executor: the executor that the options name. Called once by the scheduler process; only the chosen one is imported.

`describe_executor` says what it would be, for `millstream doctor`.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Literal

from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.weights import load_model_config
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Executor
from millstream.execution.machine import has_gpu_driver
from millstream.execution.plan import ExecutorPlan

log = logging.getLogger(__name__)


def load_executor(config: ServerConfig, source: ModelSource | None) -> Executor:
    """Load `config.executor`. `source` is None for the scripted executor, which needs no model.

    Raises:
        StartupError: the model cannot be served.
    """
    if config.executor == "scripted":
        from millstream.execution.scripted import load_scripted_executor

        return load_scripted_executor(config)
    if source is None:
        raise StartupError(f"the executor `{config.executor}` needs a model.", hint="pass --model")
    name, reason = choose_executor(config, source)
    if reason is not None:
        log.warning("the torch executor is used, which is slower: the native one cannot run, because %s", reason)
    if name == "native":
        from millstream.execution.native.executor import load_native_executor

        return load_native_executor(config, source)
    from millstream.execution.torch.build import load_torch_executor

    return load_torch_executor(config, source)


def plan_executor(config: ServerConfig, source: ModelSource | None) -> ExecutorPlan:
    """What `load_executor` would load, and what that takes. Reads no weights.

    Raises:
        StartupError: the model cannot be served.
    """
    if config.executor == "scripted" or source is None:
        from millstream.execution.scripted import load_scripted_executor

        made = load_scripted_executor(config).capabilities
        return ExecutorPlan(
            name="scripted", what=describe_executor(config, source), threads=1, context_length=made.context_length,
            num_pages=made.num_pages, page_size=made.page_size, kv_dtype="none", kv_bytes_per_token=0, weight_bytes=0,
        )  # fmt: skip
    name, reason = choose_executor(config, source)
    if name == "native":
        from millstream.execution.native.executor import plan_native as plan
    else:
        try:
            from millstream.execution.torch.build import plan_torch as plan
        except ImportError as error:
            raise _no_torch(error) from error
    return dataclasses.replace(plan(config, source), why_not_native=reason)


def choose_executor(config: ServerConfig, source: ModelSource) -> tuple[Literal["native", "torch"], str | None]:
    """Return which executor serves `source`, and why it is not the native one where `auto` would have had that.

    Raises:
        StartupError: the model is broken or not supported.
    """
    if config.executor in ("native", "torch"):
        return config.executor, None
    if has_gpu_driver():  # is quick to see; whether this torch can use it, only torch can say
        from millstream.execution.torch.build import can_use_gpu

        if can_use_gpu():
            return "torch", None
    from millstream.execution.native.executor import why_not_native

    reason = why_not_native(config, load_model_config(source))
    return ("native", None) if reason is None else ("torch", reason)


def describe_executor(config: ServerConfig, source: ModelSource | None) -> str:
    """What would compute tokens with these options, in a sentence. Loads no weights.

    Raises:
        StartupError: it is not installed, or cannot serve the model.
    """
    if config.executor == "scripted" or source is None:
        return "scripted, a stand-in that needs no model"
    name, reason = choose_executor(config, source)
    model = load_model_config(source)
    if name == "native":
        from millstream.execution.native.executor import check_native
        from millstream.execution.native.executor import describe_native as describe

        check_native(config, model)
    else:
        try:
            from millstream.execution.torch.build import describe_torch as describe
        except ImportError as error:
            raise _no_torch(error) from error
    context_length = config.context_length or model.context_length
    what = f"{describe(config)}: {model.num_layers} layers, {context_length:,} tokens of context"
    return what if reason is None else f"{what}; not native, because {reason}"


def _no_torch(error: ImportError) -> StartupError:
    return StartupError(f"torch cannot be imported: {error}.", hint="pip install torch")
