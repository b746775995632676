"""`millstream`: the command line. Thin: it turns arguments into a `ServerConfig` and hands it to the supervisor."""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.config import Env
from setproctitle import setproctitle

from millstream import __version__
from millstream.checkpoint.locate import SCRIPTED_NAMES, configured_source
from millstream.cli.banner import ready_banner
from millstream.cli.keys import with_keys_of_files
from millstream.config import EMBEDDED_MODEL, ServerConfig
from millstream.errors import StartupError
from millstream.launch.supervisor import Supervisor
from millstream.messages import EngineInfo
from millstream.observe.log import configure_logging

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")

app = App(
    name="millstream",
    help="An LLM serving runtime that can prove what it did.",
    version=__version__,
    config=Env("MILLSTREAM_", command=False),
)


@app.command
def serve(
    path: Annotated[str | None, Parameter(show_env_var=False)] = None,
    /,
    *,
    config: Annotated[ServerConfig | None, Parameter(name="*", consume_multiple=True, negative="")] = None,
) -> int:
    """Serve a model over HTTP until Ctrl-C or SIGTERM.

    Parameters
    ----------
    path
        `embedded`, a GGUF file, or a Hugging Face directory; the same as `--model`.
    """
    config = config or ServerConfig()
    configure_logging("supervisor", config.log_level)
    try:
        config = _resolve(config, path)

        def on_ready(url: str, engine: EngineInfo) -> None:
            sys.stdout.write(ready_banner(url, config.served_model_name[0], engine, needs_key=bool(config.api_key)))
            sys.stdout.flush()

        if not config.api_key and config.host not in LOOPBACK:
            log.warning("everybody who reaches %s can use this server: it has no --api-key", config.host)
        Supervisor(config, on_ready).run()
    except StartupError as error:
        sys.stderr.write(f"millstream: {error}\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return 1
    return 0


def _resolve(config: ServerConfig, path: str | None) -> ServerConfig:
    """The configuration with everything that can be known before a process starts: a wrong model path fails here, at once."""
    if path is not None:
        if config.model not in (EMBEDDED_MODEL, path):
            raise StartupError(
                f"two models are named: `{path}` and `{config.model}`",
                hint="name one: as an argument, by --model, or in MILLSTREAM_MODEL",
            )
        config = dataclasses.replace(config, model=path)
    config = with_keys_of_files(config)
    config.check()
    source = configured_source(config)
    names = SCRIPTED_NAMES if source is None else source.names
    return dataclasses.replace(config, served_model_name=config.served_model_name or names)


def main() -> None:
    """Entry point of the `millstream` command."""
    setproctitle("millstream::supervisor")  # arguments show in the list of processes, and may be keys
    sys.exit(app())
