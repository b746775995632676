"""The one list of questions to which a stream must say exactly what the plain answer says, on every route that can be asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.support.routes import Question

FAMILY = "👩‍👩‍👧‍👦"
EOS = "<|im_end|>"
PIECES = ("One, ", "zwei", " — ", "три", ". 你好", "\r\n", "END", " and\u2028on")
DINOSAUR = {"bytes": "f09fa695"}  # a token a byte


@dataclass(frozen=True)
class Case:
    """A question, and the text and end of each choice where they are known beforehand."""

    question: Question
    text: str | None = None
    finish: str | None = None
    matched: Any = None


def script(*pieces: Any) -> str:
    """A prompt whose answer the scripted executor reads from it."""
    return "<script>" + json.dumps({"pieces": list(pieces)}) + "</script>"


def said(*pieces: Any, text: str | None = None, finish: str = "stop", matched: Any = None, **fields: Any) -> Case:
    return Case(Question((script(*pieces),), {"max_tokens": 64, **fields}), text, finish, matched)


SCRIPTED: dict[str, Case] = {
    "text in several scripts": said(*PIECES, text="".join(PIECES)),
    "several tokens a step": said(list(PIECES), "x", text="".join(PIECES) + "x"),
    "nothing": said(EOS, text=""),
    "an emoji over many tokens": said("a", FAMILY, "b", text=f"a{FAMILY}b"),
    "a character of four tokens": said("a", DINOSAUR, "b", text="a🦕b", logprobs=2),
    "a character that is cut": said("Hi ", DINOSAUR, max_tokens=5, finish="length", logprobs=1),
    "bytes that are no text": said({"bytes": "e2"}, " ", {"bytes": "bb"}, "ok", text="\ufffd \ufffdok", logprobs=1),
    "the end token": said("Hello", EOS, " more", text="Hello", matched=None),
    "the end token is shown": said("Hello", EOS, text="Hello", skip_special_tokens=False),
    "control tokens are shown": said("a", "<|im_start|>", "b", text="a<|im_start|>b", skip_special_tokens=False),
    "control tokens are hidden": said("a", "<|im_start|>", "b", text="ab", logprobs=1),
    "one token": said("I am", max_tokens=1, text="I", finish="length"),
    "one token, with log probabilities": said("I am", max_tokens=1, text="I", finish="length", logprobs=3),
    "a limit": said(*"abcdef", max_tokens=3, text="abc", finish="length"),
    "a stop in one token": said("one ", "END", " two", stop="END", text="one ", matched="END"),
    "a stop over tokens": said(" delta", " zeta", " eta", " theta", "x", stop=[" zeta eta theta"], text=" delta",
                               matched=" zeta eta theta"),
    "a stop over tokens, with log probabilities": said(
        " delta", " zeta", " eta", " theta", "x", stop=[" zeta eta theta"], text=" delta", logprobs=2),
    "the earliest stop of a step": said(["ab END cd STOP ef"], stop=["STOP", "END"], text="ab ", matched="END"),
    "a stop that only begins": said("x", "yE", "N", stop=["END"], text="xyEN"),
    "a stop that begins at the limit": said("x", "E", "N", "D", stop=["END"], max_tokens=3, text="xEN", finish="length"),
    "a stop of an emoji": said("ab", FAMILY, "cd", stop=[FAMILY], text="ab", matched=FAMILY, logprobs=1),
    "a stop within an emoji": said("ab", "👩\u200d👧", "cd", stop=["👧"], text="ab👩\u200d", matched="👧"),
    "a stop in other scripts": said("ab", "три", "·", "好", "cd", stop=["и·好"], text="abтр", matched="и·好"),
    "a stop that is kept": said("ab", "END", "cd", stop="END", no_stop_trim=True, text="abEND", matched="END", logprobs=1),
    "a stop after min_tokens": said("a", "b", "a", "c", stop="a", min_tokens=2, text="ab", matched="a"),
    "a stop token": said("a", "b", "X", "c", stop_token_ids=[58], text="ab", matched=58),
    "a stop token that writes nothing": said("Hello", " there", "<|im_start|>", "x", stop_token_ids=[1], text="Hello there",
                                             matched=1, logprobs=1),
    "a stop regex": said("call 55", "5-12", "34 now", stop_regex=r"\d{3}-\d{4}", text="call ", matched="555-1234", logprobs=1),
    "a stop regex that is kept": said("a", "b!c", stop_regex="b.", no_stop_trim=True, text="ab!", matched="b!"),
    "a stop regex beside a string": said(["ab END12 STOP"], stop="STOP", stop_regex=["END[0-9]"], text="ab ", matched="END1"),
    "min_tokens beyond the end": said("a", EOS, min_tokens=6, logprobs=1),
    "ignore_eos": said("a", EOS, "b", ignore_eos=True, max_tokens=12, finish="length"),
    "choices": said(*PIECES, n=3, text="".join(PIECES)),
    "choices with log probabilities": said("a", DINOSAUR, "b", n=2, logprobs=2, text="a🦕b"),
    "the best of as many": said("a", "b", n=2, best_of=2, text="ab"),
    "choices with a stop": said("a", "b", "END", n=2, stop="END", text="ab", matched="END"),
    "log probabilities without alternatives": said(*PIECES, logprobs=0, text="".join(PIECES)),
    "every sampling field at once": said(
        *PIECES, temperature=0.7, top_p=0.9, top_k=7, min_p=0.01, presence_penalty=0.5, frequency_penalty=-0.5,
        repetition_penalty=1.1, logit_bias={"5": -100, "6": 3.5}, seed=7, text="".join(PIECES)),
    "sampling as Anthropic has it": said(*PIECES, temperature=0.5, top_p=0.9, top_k=5, seed=3, text="".join(PIECES)),
    "the prompt first": said("a", "b", echo=True),
    "the prompt first, with log probabilities": said("a", "b", echo=True, logprobs=2, stop="b"),
    "the prompt alone": said("a", echo=True, logprobs=2, max_tokens=0, finish="length"),
    "several prompts": Case(
        Question((script("a", "b"), script(*PIECES), script(EOS)), {"stop": "END", "max_tokens": 64}), finish="stop"),
    "several prompts and choices": Case(
        Question((script("a", DINOSAUR), script("END")), {"n": 2, "logprobs": 1, "stop": "END", "max_tokens": 64}),
        finish="stop"),
    "a beginning": Case(Question((script(" and", " on"),), {}, beginning="So"), text=" and on", finish="stop"),
    "a beginning and a stop": Case(
        Question((script(" and", " on"),), {"stop": ["on"]}, beginning="So"), text=" and ", finish="stop", matched="on"),
}  # fmt: skip


def asked(prompt: str = "Write one line about the sea, with an emoji. 🌊", **fields: Any) -> Case:
    return Case(Question((prompt,), {"max_tokens": 12, **fields}))


MODEL: dict[str, Case] = {
    "greedy": asked(temperature=0, logprobs=2),
    "seeded": asked(temperature=1.3, seed=11, top_k=40, logprobs=1),
    "seeded, as Anthropic has it": asked(temperature=0.9, seed=5, top_p=0.8),
    "choices": asked(temperature=1.1, seed=3, n=3, logprobs=1),
    "penalties": asked(temperature=0, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.3),
    "a ban": asked(temperature=0, logit_bias={"28": -100, "198": -100, "30": -100}, min_tokens=8),
    "min_p": asked(temperature=1.5, seed=2, min_p=0.2),
    "a stop": asked(temperature=0, stop=["e", "a"], logprobs=1),
    "a stop regex": asked(temperature=0, stop_regex=r"\w{3} ", logprobs=1),
    "a stop that is kept": asked(temperature=0, stop=["e"], no_stop_trim=True),
    "beyond the end": asked("Say yes.", temperature=0, ignore_eos=True, max_tokens=20, skip_special_tokens=False),
    "one token": asked(temperature=0, max_tokens=1, logprobs=5),
    "emoji": asked("Repeat exactly: 👩‍👩‍👧‍👦🏳️‍🌈 naïve — 春", temperature=0, max_tokens=24, logprobs=1),
    "the prompt first": asked(temperature=0, echo=True, logprobs=1, max_tokens=4),
    "several prompts": Case(Question(("One two", "Le chat", "春"), {"max_tokens": 6, "temperature": 0, "n": 2, "logprobs": 1})),
    "a beginning": Case(Question(("What is the capital of France?",), {"max_tokens": 6, "temperature": 0}, "The capital of")),
}  # fmt: skip
