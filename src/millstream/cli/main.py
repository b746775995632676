"""`millstream`: the command line. Thin: it turns arguments into a `ServerConfig` and hands it to the supervisor."""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import msgspec
from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.config import Env
from setproctitle import setproctitle

from millstream import __version__
from millstream.checkpoint.locate import SCRIPTED_NAMES, configured_source
from millstream.cli import examples
from millstream.cli.banner import ready_banner
from millstream.cli.client import DEFAULT_URL, Unreachable, fetch_ok
from millstream.cli.examples import examples_text
from millstream.cli.keys import with_keys_of_files
from millstream.cli.ledger import ledger_table
from millstream.cli.options import Options, Sources
from millstream.cli.standard import open_closed_streams, reader_has_gone
from millstream.config import EMBEDDED_MODEL, ServerConfig
from millstream.errors import StartupError
from millstream.launch.supervisor import Supervisor
from millstream.messages import EngineInfo
from millstream.observe.log import configure_logging

log = logging.getLogger(__name__)

READER_GONE = 128 + signal.SIGPIPE  # as a shell has it
LOOPBACK = ("127.0.0.1", "::1", "localhost")

sources = Sources()
app = App(
    name="millstream",
    help="An LLM serving runtime that can prove what it did.",
    version=__version__,
    config=(Env("MILLSTREAM_", command=False), sources),
    print_error=False,  # `run` does
    exit_on_error=False,
)
# loaded when they are asked for: `serve` needs none of what they need
app.command("millstream.cli.chat.command:app", name="chat")
app.command("millstream.cli.bench.command:app", name="bench")
app.command("millstream.cli.trace:app", name="trace")
START = Group("Start", sort_key=0)
ConfigFile = Annotated[str | None, Parameter(name="--config", group=START)]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_env_var=False, show_default=False)]
AllOptions = Annotated[Options | None, Parameter(name="*", consume_multiple=True, negative="", show_env_var=False)]


@app.command(help_epilogue=examples_text(examples.SERVE))
def serve(
    path: Annotated[str | None, Parameter(show_env_var=False)] = None,
    /,
    *,
    config_file: ConfigFile = None,
    dry_run: Annotated[bool, Parameter(group=START, negative="", show_env_var=False, show_default=False)] = False,
    as_json: Annotated[AsJson, Parameter(group=START)] = False,
    options: AllOptions = None,
) -> int:
    """Serve a model over HTTP until Ctrl-C or SIGTERM.

    Every option may also be an environment variable, `MILLSTREAM_PORT` for `--port`, or a line of the file of `--config`.
    A flag beats the environment, and the environment the file.

    Parameters
    ----------
    path
        `embedded`, a GGUF file, or a Hugging Face directory; the same as `--model`.
    config_file
        YAML file of options: a line such as `port: 8000` for each, lists as YAML lists.
    dry_run
        Print what would be served, and with how much memory, then exit. Loads no weights and binds no port.
    as_json
        Print the plan of --dry-run as JSON.
    """
    config = ServerConfig() if options is None else ServerConfig(**vars(options))
    configure_logging("supervisor", config.log_level, config.log_format)
    try:
        given = sources.differences(config if path is None else dataclasses.replace(config, model=path))
        config = _resolve(config, path)
        if as_json and not dry_run:
            raise StartupError("--json goes with --dry-run")
        if dry_run:
            return _print_plan(config, given, as_json=as_json)
        if given:
            log.info("options: %s", ", ".join(f"{name}={value} ({source})" for name, (value, source) in given.items()))

        def on_ready(url: str, engine: EngineInfo) -> None:
            sys.stdout.write(ready_banner(url, config.served_model_name[0], engine, needs_key=bool(config.api_key)))
            sys.stdout.flush()

        if not config.api_key and config.host not in LOOPBACK:
            log.warning("everybody who reaches %s can use this server: it has no --api-key", config.host)
        Supervisor(config, on_ready).run()
    except StartupError as error:
        return _fail(error)
    return 0


@app.command(help_epilogue=examples_text(examples.LEDGER))
def ledger(
    *,
    url: Annotated[str, Parameter(show_env_var=False)] = DEFAULT_URL,
    rid: str | None = None,
    api_key: Annotated[str | None, Parameter(env_var="MILLSTREAM_ADMIN_API_KEY")] = None,
    as_json: AsJson = False,
) -> int:
    """Show what a running server holds for which request: by whom, how much, since when.

    Parameters
    ----------
    url
        Where the server is.
    rid
        Show only what is held for this request.
    api_key
        A key that opens the admin routes, where the server asks for one.
    as_json
        Print what the server says, as JSON.
    """
    try:
        found = fetch_ok(url, "/debug/ledger" if rid is None else "/debug/ledger?" + urlencode({"rid": rid}), api_key)
    except StartupError as error:
        return _fail(error)
    sys.stdout.write(_json(found) if as_json else ledger_table(found))
    return 0


@app.command(help_epilogue=examples_text(examples.DOCTOR))
def doctor(
    *,
    url: Annotated[str | None, Parameter(show_env_var=False)] = None,
    as_json: AsJson = False,
    config_file: ConfigFile = None,
    options: AllOptions = None,
) -> int:
    """Say whether a running server is clean; where none runs, whether `millstream serve` with the same options could.

    Exits with 1 where something is wrong.

    Parameters
    ----------
    url
        The server to look at. Default: one at --host and --port, and where none answers, the installation.
    as_json
        Print the findings as JSON.
    config_file
        YAML file of options.
    """
    # here, for it loads what tokenizes and serves: twice the memory of a supervisor that needs none of it
    from millstream.cli.checks import report
    from millstream.cli.doctor import check_server
    from millstream.cli.preflight import check_installation

    config = ServerConfig() if options is None else ServerConfig(**vars(options))
    configure_logging("doctor", "warning")
    host = f"[{config.host}]" if ":" in config.host else config.host
    where = url or f"http://{host}:{config.port}"
    try:
        keys = with_keys_of_files(config)
        key = next(iter(keys.admin_api_key or keys.api_key), None)
        title, checks = f"the server at {where}", check_server(where, key)
    except StartupError as error:
        if url is not None or not isinstance(error, Unreachable):
            return _fail(error)
        title, checks = f"no server runs at {where}; this installation", check_installation(config)
    ok = all(check.ok for check in checks)
    if as_json:
        sys.stdout.write(_json({"of": title, "ok": ok, "checks": [check._asdict() for check in checks]}))
    else:
        sys.stdout.write(report(title, checks))
    return 0 if ok else 1


@app.command(help_epilogue=examples_text(examples.ENV))
def env(*, as_json: AsJson = False) -> int:
    """Show versions, processor, memory, executors and limits: what a report of a problem should have in it.

    Parameters
    ----------
    as_json
        Print it as JSON.
    """
    from millstream.cli.env import environment, environment_text

    found = environment()
    sys.stdout.write(_json(found) if as_json else environment_text(found))
    return 0


@app.command(help_epilogue=examples_text(examples.COMPLETION))
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(show_env_var=False)], /) -> int:
    """Print the completion script of a shell: `source <(millstream completion bash)`.

    Parameters
    ----------
    shell
        Which shell. zsh: save it as `_millstream` in a directory of `$fpath`; fish: `millstream completion fish | source`.
    """
    sys.stdout.write(app.generate_completion(shell=shell))
    return 0


@app.command(help_epilogue=examples_text(examples.REPLAY))
def replay(file: Annotated[Path, Parameter(show_env_var=False)], /) -> int:
    """Run a recording of `serve --record` again, and compare what it writes with what was written then.

    Exits with 0 where the bytes are the same, with 1 where they differ, with 2 where it cannot be replayed.

    Parameters
    ----------
    file
        The recording.
    """
    # here, for it loads the managers of a whole server
    from millstream.cli.replay import replay_report
    from millstream.engine.replay import read_recording
    from millstream.engine.replay import replay as run_again

    configure_logging("replay", "error")
    try:
        result = run_again(read_recording(file))
    except StartupError as error:
        _fail(error)
        return 2
    sys.stdout.write(replay_report(file.name, result))
    return 0 if result.is_equal else 1


def _print_plan(config: ServerConfig, given: dict[str, tuple[Any, str]], *, as_json: bool) -> int:
    """Print what a start would do; returns the exit status."""
    from millstream.cli.plan import make_plan, plan_text  # here, for it loads what the executors are chosen by

    plan = make_plan(config, given)
    sys.stdout.write(_json(plan) if as_json else plan_text(plan))
    return 0


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _fail(error: StartupError) -> int:
    """Say why it could not be done; returns the exit status."""
    sys.stderr.write(f"millstream: {error}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")
    return 1


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
    open_closed_streams()
    setproctitle("millstream::supervisor")  # arguments show in the list of processes, and may be keys
    try:
        status = run()
        sys.stdout.flush()
    except BrokenPipeError:
        if not reader_has_gone():
            raise
        status = READER_GONE
    sys.exit(status)


def run(arguments: list[str] | None = None) -> int:
    """Run a command, of the process's own arguments unless others are given; returns the exit status."""
    try:
        return int(app(arguments, result_action="return_value") or 0)
    except StartupError as error:  # of the configuration file, which is read with the arguments
        return _fail(error)
    except CycloptsError as error:
        sys.stderr.write(f"millstream: {' '.join(str(error).split())}\n")
        return 2
