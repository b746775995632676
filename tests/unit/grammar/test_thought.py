"""Thought: what of an answer's tokens is thought, whatever the tokens; and that it ends where its budget does."""

from __future__ import annotations

import random
from concurrent.futures import wait

import msgspec
import numpy as np
import pytest

from millstream.grammar.matcher import GrammarCompiler, Matcher
from millstream.grammar.plan import PlannedThought, TurnPlan
from millstream.grammar.source import convert
from millstream.grammar.thought import ThoughtMeter
from millstream.grammar.vocabulary import vocabulary_of
from millstream.grammar.writing import Frame
from millstream.messages.grammar import GrammarSpec, ThoughtBudget, ThoughtMarks
from millstream.text.tokenizer import load_scripted_tokenizer

THINK = ThoughtMarks(begin="<think>", end="</think>")
OPEN = msgspec.structs.replace(THINK, is_open=True)
ANYWHERE = msgspec.structs.replace(THINK, is_anywhere=True)
TOKENIZER = load_scripted_tokenizer()


def count(marks: ThoughtMarks, tokens: list[str]) -> int:
    meter = ThoughtMeter(marks)
    for token in tokens:
        meter.take(token.encode())
    return meter.count


@pytest.mark.parametrize(
    ("marks", "tokens", "expected"),
    [
        (THINK, ["<think>", "a", "b", "</think>", "c"], 2),
        (THINK, ["<", "think", ">", "a", "</", "think", ">", "c"], 1),
        (THINK, ["<think>a", "b</think>c"], 2),
        (THINK, ["<think></think>", "c"], 0),
        (THINK, ["\n", "<think>", "\n", "</think>", "\n\n", "<think>", "a", "</think>", "c"], 2),
        (THINK, ["c", "<think>", "a", "</think>"], 0),
        (THINK, ["<think>", "a", "</thi", "n", "k"], 4),
        (THINK, ["<thi", "s"], 0),
        (OPEN, ["a", "b", "</think>"], 2),
        (OPEN, ["</think>"], 0),
        (ANYWHERE, ["c", "<think>", "a", "</think>", "c", "<think>", "b"], 2),
        (THINK, ["<think>", *"<</<</think>"], 4),
    ],
)
def test_tokens_of_thought_are_those_between_the_tags(marks: ThoughtMarks, tokens: list[str], expected: int) -> None:
    assert count(marks, tokens) == expected


def test_tokens_are_thought_by_where_they_lie_and_not_by_how_they_are_cut() -> None:
    drawn = random.Random(5)
    for _ in range(300):
        thought = "".join(drawn.choice(["<", "/", "think", ">", "</thin", "x", " ", "ö"]) for _ in range(drawn.randrange(12)))
        text = f"<think>{thought}</think>Yes <think>no</think>".encode()
        start, end = len(b"<think>"), text.index(b"</think>")
        cuts = sorted({0, len(text), *(drawn.randrange(len(text)) for _ in range(8))})
        spans = list(zip(cuts, cuts[1:], strict=False))
        meter = ThoughtMeter(THINK)
        for low, high in spans:
            meter.take(text[low:high])
        assert meter.count == sum(max(low, start) < min(high, end) for low, high in spans)


def matcher_of(budget: ThoughtBudget, place: str) -> Matcher:
    frame = Frame(begin="<think>", end="</think>")
    plan = TurnPlan(
        thought=PlannedThought(frame=frame, place=place),  # type: ignore[arg-type]
        form=GrammarSpec("regex", "[0-9]{3}", "regex"),
    )
    grammar = convert(GrammarSpec("turn", msgspec.json.encode(plan).decode(), "regex"))
    compiler = GrammarCompiler(vocabulary_of(TOKENIZER, TOKENIZER.eos_token_ids))
    if compiler.matcher(grammar, budget) is None:
        wait(compiler._pending.values())
    made = compiler.matcher(grammar, budget)
    assert made is not None
    return made


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("place", ["open", "possible"])
def test_a_thought_ends_where_its_budget_does(tokens: int, place: str) -> None:
    end_ids = tuple(TOKENIZER.encode("</think>", add_special_tokens=False))
    marks = OPEN if place == "open" else THINK
    drawn = random.Random(tokens)
    for _ in range(5):
        matcher = matcher_of(ThoughtBudget(marks=marks, tokens=tokens, end_ids=end_ids), place)
        taken: list[int] = [] if place == "open" else TOKENIZER.encode("<think>", add_special_tokens=False)
        for token_id in taken:
            matcher.mask()
            matcher.take([token_id])
        while not matcher.is_ended:
            allowed = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
            taken.append(int(drawn.choice(allowed)))
            if taken[-1] in TOKENIZER.eos_token_ids:
                break
            matcher.take([taken[-1]])
        text = b"".join(TOKENIZER.single.of(token_id) for token_id in taken).decode().removesuffix("<|im_end|>")
        assert text.rpartition("</think>")[2].removesuffix("<|endoftext|>").strip().isdigit()
        meter = ThoughtMeter(marks)
        for token_id in taken:
            meter.take(TOKENIZER.single.of(token_id))
        assert meter.count <= tokens + 3  # what is left of a character of four bytes
