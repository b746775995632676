"""How much a grammar may cost, in the process that proves it and in the one that runs it."""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_SOURCE_BYTES = 256 * 1024  # of a grammar as its client wrote it
MAX_COMPILE_S = 2.0  # in a worker, which is killed then
MAX_WORKER_BYTES = 256 << 20  # of address space beyond what it has with nothing to do
WORKER_STACK_BYTES = 1 << 20  # a quarter of what the scheduler's thread has: what fits here fits there
COMPILER_STACK_BYTES = 4 << 20


def parser_limits() -> LLParserLimits:
    """The library's own limits. They bound each mask, too: about 15 ms, whatever the grammar; usual ones take 0.01."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,  # about 20 ms
        step_lexer_fuel=200_000,  # about 14 ms
        step_max_items=50_000,  # about 2.5 ms
        max_lexer_states=50_000,  # of 1 to 2 kB
        max_grammar_size=200_000,
        verbose_errors=False,
    )
