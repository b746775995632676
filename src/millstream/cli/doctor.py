"""`millstream doctor`: whether a running server is clean, and whether this installation can serve.

Every check says what it found, and where it failed, what to do about it. None of them changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.checkpoint.locate import ModelSource, configured_source
from millstream.cli.client import fetch, fetch_ok
from millstream.config import ServerConfig
from millstream.errors import StartupError
from millstream.execution.registry import describe_executor
from millstream.launch.listen import bind
from millstream.text.chat_template import ChatTemplate
from millstream.text.tokenizer import Tokenizer, load_configured_tokenizer, scripted_text

REST_S = 3.0  # what a request that has just ended gets to leave every process
LOOK_S = 0.1  # between two looks
SHOWN = 5
SAMPLE_CHARS = 4000


class Check(NamedTuple):
    """One finding."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def check_server(url: str, key: str | None = None) -> list[Check]:
    """Whether the server at `url` is ready, holds nothing for requests that are over, and never sent wrong text.

    `key` is an API key that opens the admin routes, where the server asks for one.

    Raises:
        Unreachable: nobody answers there.
    """
    fetch(url, "/", key)  # is anybody there at all
    ready = _run("ready", lambda: _processes(fetch_ok(url, "/server_info", key)))
    if not ready.ok:
        return [ready]
    return [ready, _run("ledger", lambda: _ledger(url, key)), _run("text", lambda: _text(fetch_ok(url, "/server_info", key)))]


def check_installation(config: ServerConfig) -> list[Check]:
    """Whether `millstream serve` with these options could start here: model, tokenizer, executor, port."""
    checks = [_run("options", lambda: _options(config))]
    found: list[ModelSource | None] = []
    checks.append(_run("model", lambda: _model(config, found)))
    if checks[-1].ok:
        checks.append(_run("tokenizer", lambda: _tokenizer(config, found[0])))
        checks.append(_run("executor", lambda: describe_executor(config, found[0])))
    checks.append(_run("port", lambda: _port(config)))
    return checks


def report(title: str, checks: list[Check]) -> str:
    """The findings for people."""
    width = max(len(check.name) for check in checks)
    lines = [title]
    for check in checks:
        lines.append(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name.ljust(width)}  {check.detail}")
        if check.hint:
            lines.append(f"        {' ' * width}  hint: {check.hint}")
    failed = sum(not check.ok for check in checks)
    lines.append("all is well" if not failed else f"{failed} of {len(checks)} checks failed")
    return "\n".join(lines) + "\n"


def _run(name: str, look: Callable[[], str]) -> Check:
    """What `look` found, or why it failed."""
    try:
        return Check(name, True, look())
    except StartupError as error:
        return Check(name, False, str(error), error.hint)


def _processes(info: dict[str, Any]) -> str:
    processes = ", ".join(f"{name} {process['pid']}" for name, process in info["processes"].items())
    return f"Millstream {info['version']} serves {info['model']}: {processes}"


def _text(info: dict[str, Any]) -> str:
    wrong = info["stream_mismatch_total"]
    if wrong:
        raise StartupError(f"{wrong} answers were not the text of their tokens.", hint="this is a bug; the log names them")
    return "every answer was the text of its tokens"


def _ledger(url: str, key: str | None) -> str:
    """Look until nothing is held that belongs to no live request, or for `REST_S`: an end takes a moment to reach everybody."""
    deadline = time.monotonic() + REST_S
    while True:
        found = fetch_ok(url, "/debug/ledger", key)
        if found["mismatches"]:
            raise StartupError(
                f"the ledger did not balance {found['mismatches']} times.", hint="this is a bug; the log says what was amiss"
            )
        orphans = _orphans(found)
        if not orphans:
            if not found["held"]:
                return "nothing is held"
            return f"{found['totals'].get('state', 0)} requests are live, and the engine holds nothing for any other"
        if time.monotonic() >= deadline:
            some = ", ".join(f"{each['kind']} of {each['rid'] or '-'} in the {each['process']}" for each in orphans[:SHOWN])
            raise StartupError(
                f"{len(orphans)} things are held for requests that are not live: {some}.", hint=f"millstream ledger --url {url}"
            )
        time.sleep(LOOK_S)


def _orphans(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Entries of scheduler and detokenizer for a request that the entry does not know; of a list cut short none is known.

    What the entry holds beside the state may outlive it, rightly: a client reads the rest of its answer, a worker ends its job.
    """
    if found["left_out"]:
        return []
    live = {each["rid"] for each in found["held"] if each["kind"] == "state"}
    return [each for each in found["held"] if not each["process"].startswith("entry") and each["rid"] not in live]


def _options(config: ServerConfig) -> str:
    config.check()
    return "can be used together"


def _model(config: ServerConfig, found: list[ModelSource | None]) -> str:
    source = configured_source(config)
    found.append(source)
    if source is None:
        return "none is needed"
    checked = ", with the expected SHA-256" if config.model == "embedded" else ""
    return f"{source.names[0]}: {source.path}{checked}"


def _tokenizer(config: ServerConfig, source: ModelSource | None) -> str:
    """Load it, and see that a stream of its tokens is the text of all of them."""
    tokenizer = load_configured_tokenizer(config, source)
    ids = tokenizer.encode(scripted_text()[:SAMPLE_CHARS], add_special_tokens=False)
    decoder = tokenizer.incremental()
    if "".join([*(decoder.push((each,)) for each in ids), decoder.flush()]) != tokenizer.decode(ids):
        raise StartupError("text decoded token by token differs from the text of all tokens.", hint="please report it")
    tokenizer.load_fast_encoder()
    return f"{tokenizer.vocab_size:,} tokens, {_template(tokenizer)}, encodes with {tokenizer.encoder_name}"


def _template(tokenizer: Tokenizer) -> str:
    if tokenizer.chat_template is None:
        return "no chat template"
    for source in tokenizer.chat_templates.values():
        ChatTemplate(source, tokenizer.special_tokens)
    return "chat template" if len(tokenizer.chat_templates) == 1 else f"{len(tokenizer.chat_templates)} chat templates"


def _port(config: ServerConfig) -> str:
    sock = bind(config.host, config.port)
    host, port = sock.getsockname()[:2]
    sock.close()
    return f"{host}:{port} is free"
