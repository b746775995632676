"""What a grammar costs, in each step of the model and to compile, and what jump-forward saves.

    python -m benchmarks.structured.run
    python -m benchmarks.structured.run --rows 1 8 --steps 20 --out structured.json

In one process, without a server. Steps with every row constrained take turns with free ones of as many rows, so that what else
the machine does meets both; the figure is the median of the differences. A step does what the scheduler does, with what is
forced found, and not appended, so that both sides have one token a row. Answers are then made whole, with jumps and without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import machine
from benchmarks.structured.schemas import ANSWERS, ENDLESS, KINDS
from millstream.checkpoint.locate import configured_source
from millstream.config import ServerConfig
from millstream.execution.interface import Executor, ForwardBatch, ForwardRow
from millstream.execution.registry import load_executor
from millstream.grammar.matcher import GrammarCompiler, Matcher
from millstream.grammar.source import convert
from millstream.grammar.vocabulary import vocabulary_of
from millstream.messages.grammar import GrammarSpec
from millstream.messages.sampling import SamplingParams
from millstream.text.tokenizer import load_configured_tokenizer

PROMPT = "Write a JSON list of things: "
PAGES_A_ROW = 40
MOST_TOKENS = 300  # of an answer
MOST_FORCED = 128


class StepTime(NamedTuple):
    """Seconds of a step, and those of them that went into grammars beside the draw."""

    whole: float
    grammar: float


def compiled(compiler: GrammarCompiler, schema: Any) -> tuple[Matcher, float]:
    """A matcher, and the seconds until there was one."""
    grammar = convert(GrammarSpec("json_schema", json.dumps(schema)))
    started = time.perf_counter()
    while (matcher := compiler.matcher(grammar)) is None:
        time.sleep(0)
    return matcher, time.perf_counter() - started


def compile_times(compiler: GrammarCompiler, repeats: int) -> list[float]:
    """Milliseconds until there is a matcher, of every kind of schema `repeats` times, each known to nobody before."""
    schemas = [{**schema, "description": f"{number}"} for number in range(repeats) for schema in KINDS]
    return sorted(compiled(compiler, schema)[1] * 1e3 for schema in schemas)


def row_of(number: int, prompt: list[int], seed: int) -> ForwardRow:
    """A row with pages of its own, which is to compute its prompt."""
    return ForwardRow(
        rid=str(number),
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        start=0,
        end=len(prompt),
        pages=[number * PAGES_A_ROW + page for page in range(PAGES_A_ROW)],
        sampling=SamplingParams(),
        seed=seed,
        sample=True,
    )


def step(executor: Executor, rows: list[ForwardRow], matchers: list[Matcher]) -> StepTime:
    """Run one step as the scheduler does, but for what is forced; `matchers` is empty for free rows."""
    started = time.perf_counter()
    for row, matcher in zip(rows, matchers, strict=False):
        row.allowed = matcher.mask()
    masked = time.perf_counter()
    output = executor.forward(ForwardBatch(rows))
    drawn = time.perf_counter()
    for matcher, ids in zip(matchers, output.token_ids, strict=False):
        matcher.take(ids)
        matcher.forced(MOST_FORCED)
    followed = time.perf_counter()
    for row, ids in zip(rows, output.token_ids, strict=True):
        row.token_ids = [*row.token_ids, *ids]
        row.start, row.end = row.end, len(row.token_ids)
    return StepTime(time.perf_counter() - started, masked - started + followed - drawn)


def compare(executor: Executor, prompt: list[int], compiler: GrammarCompiler, num_rows: int, steps: int) -> dict[str, Any]:
    """Time steps of `num_rows` rows, free and constrained in turns."""
    free = [row_of(number, prompt, number) for number in range(num_rows)]
    constrained = [row_of(num_rows + number, prompt, number) for number in range(num_rows)]
    matchers = [compiled(compiler, ENDLESS)[0] for _ in range(num_rows)]
    step(executor, free, []), step(executor, constrained, matchers)  # the prompts
    pairs = [(step(executor, free, []), step(executor, constrained, matchers)) for _ in range(steps)]
    plain = statistics.median(pair[0].whole for pair in pairs)
    more = statistics.median(pair[1].whole - pair[0].whole for pair in pairs)
    grammar = statistics.median(pair[1].grammar for pair in pairs)
    return {
        "rows": num_rows,
        "free_ms": plain * 1e3,
        "more_ms": more * 1e3,
        "grammar_ms": grammar * 1e3,  # of `more_ms`: masks made, texts followed
        "overhead": more / plain,
        "quickest": min(pair[1].whole for pair in pairs) / min(pair[0].whole for pair in pairs) - 1,
    }


def answer(executor: Executor, prompt: list[int], matcher: Matcher, seed: int, *, jumps: bool) -> tuple[list[int], int, float]:
    """One answer alone: its ids, the steps it took, and the seconds."""
    row = row_of(0, prompt, seed)
    started = time.perf_counter()
    num_steps = 0
    while not matcher.is_ended and len(row.token_ids) - len(prompt) < MOST_TOKENS:
        row.allowed = matcher.mask()
        ids = executor.forward(ForwardBatch([row])).token_ids[0]
        num_steps += 1
        matcher.take(ids)
        if jumps and not matcher.is_ended and (forced := matcher.forced(MOST_FORCED)):
            matcher.take(forced)
            ids = [*ids, *forced]
        row.token_ids = [*row.token_ids, *ids]
        row.start, row.end = row.end, len(row.token_ids)
    return list(row.token_ids[len(prompt) :]), num_steps, time.perf_counter() - started


def jump(executor: Executor, prompt: list[int], compiler: GrammarCompiler, name: str, seeds: int) -> dict[str, Any]:
    """Make answers to one schema with jumps and without; they must be the same."""
    tokens = many = few = 0
    drawn_s = jumped_s = 0.0
    for seed in range(seeds):
        ids, steps, seconds = answer(executor, prompt, compiled(compiler, ANSWERS[name])[0], seed, jumps=False)
        same, fewer, less = answer(executor, prompt, compiled(compiler, ANSWERS[name])[0], seed, jumps=True)
        if same != ids:
            raise RuntimeError(f"jumps changed an answer to the schema `{name}`")
        tokens, many, few = tokens + len(ids), many + steps, few + fewer
        drawn_s, jumped_s = drawn_s + seconds, jumped_s + less
    saved = {"steps_saved": 1 - few / many, "time_saved": 1 - jumped_s / drawn_s}
    return {"schema": name, "tokens": tokens, "steps_drawn": many, "steps_jumped": few, **saved}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--compiles", type=int, default=15, help="of each schema")
    parser.add_argument("--answers", type=int, default=5, help="to each schema, with jumps and without")
    parser.add_argument("--executor", default=ServerConfig.executor)
    parser.add_argument("--out", type=Path, default=Path("structured.json"))
    arguments = parser.parse_args()
    config = ServerConfig(executor=arguments.executor)
    source = configured_source(config)
    tokenizer = load_configured_tokenizer(config, source)
    executor = load_executor(config, source)
    compiler = GrammarCompiler(vocabulary_of(tokenizer, executor.capabilities.eos_token_ids | tokenizer.eos_token_ids))
    compile_ms = compile_times(compiler, arguments.compiles)
    p50, p99 = statistics.median(compile_ms), compile_ms[int(0.99 * len(compile_ms))]
    print(f"compile: p50 {p50:.1f} ms, p99 {p99:.1f} ms of {len(compile_ms)}")
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    runs = []
    for num_rows in arguments.rows:
        run = compare(executor, prompt, compiler, num_rows, arguments.steps)
        runs.append(run)
        print(
            f"{num_rows} rows: {run['free_ms']:.2f} ms a step, constrained {run['more_ms']:+.2f} ms, {run['overhead']:+.1%}"
            f" (quickest steps {run['quickest']:+.1%}; grammars alone {run['grammar_ms']:.2f} ms)"
        )
    jumps = []
    for name in ANSWERS:
        run = jump(executor, prompt, compiler, name, arguments.answers)
        jumps.append(run)
        print(
            f"{name}: {run['tokens']} tokens in {run['steps_drawn']} steps, with jumps in {run['steps_jumped']}: "
            f"{run['steps_saved']:.0%} of the steps and {run['time_saved']:.0%} of the time saved"
        )
    executor.close()
    report = {"machine": machine(), "compile_ms": compile_ms, "p50": p50, "p99": p99, "runs": runs, "jumps": jumps}
    arguments.out.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
