"""The command: arguments into a workload and a load, a progress bar, and a report as text, JSON and a picture."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Group, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millstream.cli.bench.figures import figures, output_tokens, times
from millstream.cli.bench.load import Load, Run, drive
from millstream.cli.bench.picture import draw
from millstream.cli.bench.report import headline, report_text
from millstream.cli.bench.wire import Record, Target
from millstream.cli.bench.workload import Session, Shape, Turn, make_sessions, parse_range, read_sessions
from millstream.cli.client import split_url
from millstream.cli.remote import Remote, command_app
from millstream.errors import StartupError

INTERRUPTED = 130
CONCURRENCY = 8
REQUESTS = 100
WARMUP = Session([Turn([{"role": "user", "content": "Say hello."}], 8)])
EXAMPLES = """
millstream bench --concurrency 16 --requests 200
millstream bench --rate 4 --duration 60 --prompt-words 16-512 --max-tokens 16-128
millstream bench --workload shared-prefix --prefix-words 1000 --json > result.json
millstream bench --workload multi-turn --turns 6 --picture result.svg
millstream bench --file questions.jsonl --url http://127.0.0.1:8000
"""
LOAD, WORKLOAD, OUTPUT = (Group.create_ordered(name) for name in ("Load", "Workload", "Output"))
Flag = Annotated[bool, Parameter(negative="", show_default=False)]


def bench(
    *,
    remote: Remote | None = None,
    concurrency: Annotated[int | None, Parameter(group=LOAD)] = None,
    rate: Annotated[float | None, Parameter(group=LOAD)] = None,
    requests: Annotated[int | None, Parameter(group=LOAD)] = None,
    duration: Annotated[float | None, Parameter(group=LOAD)] = None,
    warmup: Annotated[int, Parameter(group=LOAD)] = 1,
    seed: Annotated[int, Parameter(group=LOAD)] = 0,
    workload: Annotated[Literal["random", "shared-prefix", "multi-turn"], Parameter(group=WORKLOAD)] = "random",
    file: Annotated[Path | None, Parameter(group=WORKLOAD)] = None,
    prompt_words: Annotated[str, Parameter(group=WORKLOAD)] = "64",
    max_tokens: Annotated[str, Parameter(group=WORKLOAD)] = "64",
    prefix_words: Annotated[int, Parameter(group=WORKLOAD)] = 500,
    prefixes: Annotated[int, Parameter(group=WORKLOAD)] = 4,
    turns: Annotated[int, Parameter(group=WORKLOAD)] = 4,
    extra_body: Annotated[str, Parameter(group=WORKLOAD)] = "{}",
    as_json: Annotated[Flag, Parameter(name="--json", group=OUTPUT)] = False,
    output: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    picture: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
) -> int:
    """Put load on a server, ours or any with the OpenAI API, and say how fast it answered.

    Streamed chat requests; --timeout is for each as a whole. Exits with 0; 1: a request failed, or nothing could be asked; 2:
    wrong arguments; 130: interrupted, with the report of what was done until then.

    Parameters
    ----------
    concurrency
        Clients at a time, each of which asks again once it is answered. Default: 8.
    rate
        Sessions a second that begin at random times (Poisson), however many are under way. Instead of --concurrency.
    requests
        Requests in all. Default: 100, or as many as --duration allows; of a file, its lines.
    duration
        Seconds after which none is begun.
    warmup
        Requests before all others, one after the other, that do not count.
    seed
        Of the questions and of the random times.
    workload
        random: each question by itself; shared-prefix: each behind one of a few long system prompts; multi-turn: conversations.
    file
        Questions from a JSON Lines file instead: "text", {"prompt": "text"} or {"messages": [...]} a line, with "max_tokens".
    prompt_words
        Words of a question: 64, or 16-512 for any number in between.
    max_tokens
        Tokens of an answer, likewise.
    prefix_words
        Words of a shared system prompt.
    prefixes
        How many of those there are.
    turns
        Questions of a conversation.
    extra_body
        JSON object with further fields of each request, such as {"temperature": 0}.
    as_json
        Print the report as JSON.
    output
        Write the report as JSON to this file, too.
    picture
        Write a picture to this file: SVG, with the distribution of each kind of time.
    """
    remote = remote or Remote()
    for name, value in {"requests": requests, "turns": turns, "prefixes": prefixes, "prefix-words": prefix_words}.items():
        _at_least(name, value, 1)
    for name, number in {"concurrency": concurrency, "rate": rate, "duration": duration, "timeout": remote.timeout}.items():
        _at_least(name, number, 1e-3)
    if concurrency is not None and rate is not None:
        raise StartupError("--concurrency and --rate are two kinds of load: name one")
    kind: Any = "file" if file is not None else workload
    tokens = parse_range(max_tokens, "max-tokens")
    shape = Shape(
        kind=kind,
        prompt_words=parse_range(prompt_words, "prompt-words"),
        max_tokens=tokens,
        prefix_words=prefix_words,
        prefixes=prefixes,
        turns=turns,
    )
    load = Load(concurrency=None if rate else concurrency or CONCURRENCY, rate=rate, duration_s=duration, seed=seed)
    if file is None:
        total = requests or (None if duration else REQUESTS)
        sessions = make_sessions(shape, total, seed)
    else:
        read = read_sessions(file, requests, tokens.high)
        total, sessions = len(read), iter(read)
    split_url(remote.base)
    target = Target(
        url=remote.base if "//" in remote.base else f"http://{remote.base}",
        model=remote.model_name(),
        key=remote.key,
        timeout_s=remote.timeout,
        extra=_object(extra_body),
    )
    run, interrupted = _run(sessions, total, target, load, warmup)
    if not run.records:
        raise StartupError("no request was over before the end.")
    about = {"file": str(file)} if file is not None else _shape(shape)
    found = figures(run.records, max(record.ended for record in run.records) - run.began)
    report = {
        "url": target.url,
        "model": target.model,
        "load": {"concurrency": load.concurrency, "rate": load.rate, "duration_s": duration},
        "workload": {"kind": kind, **about},
        "seed": seed,
        "interrupted": interrupted,
        "figures": found,
    }
    _write(report, run, as_json=as_json, output=output, picture=picture)
    if interrupted:
        return INTERRUPTED
    return int(found["requests"]["failed"] > 0)


def _run(sessions: Iterator[Session], total: int | None, target: Target, load: Load, warmup: int) -> tuple[Run, bool]:
    """Warm up and drive, with a bar on standard error where that is a terminal; whether Ctrl-C ended it.

    `total`: requests, if that is known. Warming up asks something of its own: no question finds its beginning cached for it.
    """
    run = Run()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("warming up", total=total)
        produced = failed = 0

        def on_end(record: Record) -> None:
            nonlocal produced, failed
            failed += record.error is not None
            produced += output_tokens(record)
            rate = produced / max(1e-9, time.perf_counter() - run.began)
            told = f"{rate:,.0f} tokens/s" + (f", {failed:,} failed" if failed else "")
            progress.update(task, advance=1, description=told)

        async def everything() -> None:
            first = Load(concurrency=1, rate=None, duration_s=None, seed=load.seed)
            await drive([WARMUP] * warmup, target, first, Run(), lambda _: None)
            await drive(sessions, target, load, run, on_end)

        try:
            asyncio.run(everything())
        except KeyboardInterrupt:
            return run, True
    return run, False


def _write(report: dict[str, Any], run: Run, *, as_json: bool, output: Path | None, picture: Path | None) -> None:
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
    sys.stdout.write(text if as_json else report_text(report))
    try:
        if output is not None:
            output.write_text(text, encoding="utf-8")
        if picture is not None:
            found = report["figures"]
            under = (
                f"{found['requests_per_s']:,.2f} requests and {found['output_tokens_per_s']:,.1f} output tokens a second, "
                f"{found['requests']['failed']:,} failed"
            )
            picture.write_text(draw(headline(report), under, times(run.records)), encoding="utf-8")
    except OSError as error:
        raise StartupError(f"`{error.filename}` cannot be written: {error.strerror}") from None


def _shape(shape: Shape) -> dict[str, Any]:
    """What of the shape matters to this kind."""
    found: dict[str, Any] = {"prompt_words": list(shape.prompt_words), "max_tokens": list(shape.max_tokens)}
    if shape.kind == "shared-prefix":
        found |= {"prefix_words": shape.prefix_words, "prefixes": shape.prefixes}
    return found | ({"turns": shape.turns} if shape.kind == "multi-turn" else {})


def _at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and not value >= least:
        raise StartupError(f"--{name} is {value:g}; it must be at least {least:g}")


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise StartupError(f"--extra-body is no JSON object: {error}") from None


app = command_app("bench", bench, EXAMPLES)
