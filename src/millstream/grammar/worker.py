"""The worker: a process that compiles grammars to prove that they can be compiled. Started and killed by `checker`.

A grammar can be made that overflows the stack of the library, which ends the process; that must be no process with anybody's
request in it. Reads a `Vocabulary` and then one `GrammarSpec` after another from its standard input and answers each with a
`Proof` (`wire`). It ends with its input.
"""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from millstream.grammar.limits import MAX_WORKER_BYTES, WORKER_STACK_BYTES, parser_limits
from millstream.grammar.places import faulty_part
from millstream.grammar.source import GrammarError, convert, of_schema
from millstream.grammar.vocabulary import Vocabulary
from millstream.grammar.wire import Proof, receive, send
from millstream.messages.grammar import GrammarSpec


def prove(spec: GrammarSpec, tokenizer: LLTokenizer) -> Proof:
    """Compile a grammar, and make its first mask."""
    try:
        grammar = convert(spec)
    except GrammarError as error:
        return Proof(error=error.message, place=error.place)
    found = fault(grammar, tokenizer)
    if not found:
        return Proof(grammar)
    place = ""
    if spec.kind == "json_schema":
        place = faulty_part(msgspec.json.decode(spec.source), found, lambda part: fault(of_schema(part), tokenizer))
    return Proof(error=found, place=place)


def fault(grammar: str, tokenizer: LLTokenizer) -> str:
    """What is wrong with a grammar; empty where nothing is."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        error = str(matcher.get_error()).removesuffix("<non-verbose/>").strip()
        return "it allows no text" if error.startswith("NoExtension") else error
    return ""


def main() -> None:
    """Answer jobs until the input ends."""
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    data = receive(jobs)
    if data is None:
        return
    tokenizer = msgspec.msgpack.decode(data, type=Vocabulary).compiled()
    _limit_memory()
    send(answers, Proof())  # ready
    while (data := receive(jobs)) is not None:
        send(answers, prove(msgspec.msgpack.decode(data, type=GrammarSpec), tokenizer))


def _limit_memory() -> None:
    """Allow so much more than there is now. Where nothing says how much that is, only the time is limited."""
    sizes = Path("/proc/self/statm")
    if sizes.exists():
        limit = int(sizes.read_text().split()[0]) * resource.getpagesize() + MAX_WORKER_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    threading.stack_size(WORKER_STACK_BYTES)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
