"""load_executor: the executor that the options name. Called once by the scheduler process; only the chosen one is imported.

`describe_executor` says what it would be, for `millstream doctor`.
"""

from __future__ import annotations

from millstream.checkpoint.locate import ModelSource
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.interface import Executor


def load_executor(config: ServerConfig, source: ModelSource | None) -> Executor:
    """Load `config.executor`. `source` is None for the scripted executor, which needs no model.

    Raises:
        StartupError: the model cannot be served.
    """
    if config.executor == "scripted":
        from millstream.execution.scripted import load_scripted_executor

        return load_scripted_executor(config)
    if source is None:
        raise StartupError("the torch executor needs a model.", hint="pass --model")
    from millstream.execution.torch.runner import load_torch_executor

    return load_torch_executor(config, source)


def describe_executor(config: ServerConfig, source: ModelSource | None) -> str:
    """What would compute tokens with these options, in a sentence. Loads no weights.

    Raises:
        StartupError: it is not installed, or cannot serve the model.
    """
    if config.executor == "scripted" or source is None:
        return "scripted, a stand-in that needs no model"
    try:
        from millstream.execution.torch.runner import describe_torch_executor
    except ImportError as error:
        raise StartupError(f"torch cannot be imported: {error}.", hint="pip install torch") from error
    return describe_torch_executor(config, source)
