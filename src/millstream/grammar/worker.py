"""The worker: a process that compiles grammars to prove that they can be compiled. Started and killed by `checker`.

A grammar can be made that overflows the stack of the library, which ends the process; that must be no process with anybody's
request in it. Reads a `Vocabulary` and then one `GrammarSpec` after another from its standard input and answers each with a
`Proof` (`wire`). It ends with its input.
"""

from __future__ import annotations

import random
import resource
import sys
import threading
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from millstream.grammar.errors import GrammarError
from millstream.grammar.limits import MAX_WORKER_BYTES, WORKER_STACK_BYTES, parser_limits
from millstream.grammar.places import faulty_part
from millstream.grammar.plan import TurnPlan
from millstream.grammar.source import convert, of_schema
from millstream.grammar.turn import parts_of, writing_of
from millstream.grammar.vocabulary import Vocabulary
from millstream.grammar.wire import Proof, receive, send
from millstream.messages.grammar import GrammarSpec

NUM_WALKS = 3
WALK_TOKENS = 12


class Prover:
    """Compiles grammars against one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.compiled()
        self._specials = vocabulary.specials()

    def prove(self, spec: GrammarSpec) -> Proof:
        """Compile a grammar, and make its first mask."""
        try:
            if spec.kind == "turn" and (wrong := self._fault_of_members(msgspec.json.decode(spec.source, type=TurnPlan))):
                return wrong
            grammar = convert(spec, self._specials)
        except GrammarError as error:
            return Proof(error=error.message, place=error.place)
        found = fault(grammar, self._tokenizer)
        if not found:
            return Proof(grammar)
        if spec.kind == "turn":
            return self._fault_of_turn(msgspec.json.decode(spec.source, type=TurnPlan), found)
        place = ""
        if spec.kind == "json_schema":
            schema = msgspec.json.decode(spec.source)
            place = faulty_part(schema, found, lambda part: fault(of_schema(part), self._tokenizer))
        return Proof(error=found, place=place)

    def _fault_of_members(self, plan: TurnPlan) -> Proof | None:
        """What is wrong with the schemas of tools whose arguments are not one JSON object, of which only parts are compiled.

        Raises:
            GrammarError: see `convert`.
        """
        if plan.calls is None or writing_of(plan.calls, self._specials).style == "json":
            return None
        wrong = any(self._is_refused(part) for part in parts_of(plan) if part.kind == "json_schema")
        return self._fault_of_turn(plan, "it cannot be used") if wrong else None

    def _is_refused(self, part: GrammarSpec) -> bool:
        try:
            grammar = convert(part, self._specials)
        except GrammarError:
            return True
        return bool(LLMatcher.validate_grammar(grammar, self._tokenizer, limits=parser_limits()))

    def _fault_of_turn(self, plan: TurnPlan, found: str) -> Proof:
        """Which part of a plan is wrong by itself; the fault is the whole's where none is."""
        for part in parts_of(plan):
            proof = self.prove(part)
            if proof.error:
                return Proof(error=proof.error, place=f"{part.param}.{proof.place}" if proof.place else part.param)
        return Proof(error=found)


def fault(grammar: str, tokenizer: LLTokenizer) -> str:
    """What is wrong with a grammar; empty where nothing is."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    for number in range(NUM_WALKS):
        _walk(matcher, random.Random(number))
    if matcher.is_error():
        error = str(matcher.get_error()).removesuffix("<non-verbose/>").strip()
        return "it allows no text" if error.startswith("NoExtension") else error
    return ""


def _walk(matcher: LLMatcher, drawn: random.Random) -> None:
    """Go some way into a grammar: a place that the library cannot follow may be behind its beginning."""
    matcher.reset()
    for _ in range(WALK_TOKENS):
        mask = matcher.compute_bitmask() if not matcher.is_error() else b""
        if matcher.is_error() or matcher.is_stopped():
            return
        start = drawn.randrange(len(mask))
        place = next((at for at in (*range(start, len(mask)), *range(start)) if mask[at]), None)
        if place is None:
            return
        bits = [bit for bit in range(8) if mask[place] >> bit & 1]
        matcher.consume_token(8 * place + drawn.choice(bits))


def main() -> None:
    """Answer jobs until the input ends."""
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    data = receive(jobs)
    if data is None:
        return
    prover = Prover(msgspec.msgpack.decode(data, type=Vocabulary))
    _limit_memory()
    send(answers, Proof())  # ready
    while (data := receive(jobs)) is not None:
        send(answers, prover.prove(msgspec.msgpack.decode(data, type=GrammarSpec)))


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
