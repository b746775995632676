"""Figures of the text path alone, no process and no socket: `python -m benchmarks.text.measure`, a minute on one core.

It prints the tables of README.md beside it. Each figure is the best of several rounds: on a shared machine the best is the
nearest to what the code costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import fastest
from millstream.checkpoint.locate import resolve_model
from millstream.detokenizer.witness import Witness
from millstream.text.digest import digest_of
from millstream.text.huggingface_tokenizer import read_huggingface_tokenizer
from millstream.text.incremental import IncrementalDecoder
from millstream.text.regex import compile_patterns
from millstream.text.stop import StopMatcher
from millstream.text.stop_regex import RegexMatcher
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, load_tokenizer, scripted_text

ROUNDS = 5
TOKENS = 200  # a stream
ENGLISH = "The mill stands where the stream bends, and the miller's cat sleeps on the warmest sack of flour. " * 20
PIECE = 4  # characters a token, in round numbers


def detokenise(tokenizer: Tokenizer, text: str, streams: int) -> float:
    """Microseconds a token, one token a stream in turn."""
    ids = tokenizer.encode(text, add_special_tokens=False)[:TOKENS]
    decoders: list[IncrementalDecoder] = []

    def run() -> None:
        for token_id in ids:
            one = (token_id,)
            for decoder in decoders:
                decoder.push(one)

    times = []
    for _ in range(ROUNDS):
        decoders[:] = [tokenizer.incremental() for _ in range(streams)]
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) / (len(ids) * streams) * 1e6


def push_all(tokenizer: Tokenizer, ids: list[int]) -> None:
    """One stream, an id at a time."""
    decoder = tokenizer.incremental()
    for token_id in ids:
        decoder.push((token_id,))


def match(make: Callable[[], StopMatcher | RegexMatcher], text: str) -> float:
    """Microseconds a character, in pieces of a token's size."""
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]

    def run() -> None:
        matcher = make()
        for piece in pieces:
            matcher.feed(piece)

    return fastest(run, ROUNDS) / len(text) * 1e6


def prove(tokenizer: Tokenizer) -> None:
    """What the live proof of exactness costs: the witness in the detokenizer, the digest in the entry, a one-shot decode."""
    ids = (tokenizer.encode(ENGLISH + scripted_text(), add_special_tokens=False) * 4)[:4000]
    texts = [tokenizer.decode([token_id]) for token_id in ids]

    def witness() -> None:
        one = Witness(tokenizer.incremental(), no_stop_trim=False)
        for token_id in ids:
            one.push([token_id])

    def digest() -> None:
        value = 0
        for text in texts:
            value = digest_of(text, value)

    print("proof, us a token (a row of one)")
    print(f"  detokenizer: witness             {fastest(witness, ROUNDS) / len(ids) * 1e6:12.3f}")
    print(f"  entry: digest                    {fastest(digest, ROUNDS) / len(ids) * 1e6:12.3f}")
    print(f"  one-shot decode of 1,000 ids, all{fastest(lambda: tokenizer.decode(ids[:1000]), ROUNDS) * 1e6:12.1f}")


def encode(name: str, tokenizer: Tokenizer) -> None:
    """Milliseconds of text to ids with `tokenizers` and with `fastokens`, and what the second costs at start."""
    start = time.perf_counter()
    tokenizer.load_fast_encoder()
    loading = time.perf_counter() - start
    text = (ENGLISH + scripted_text()) * 60
    ids = tokenizer.encode(text, add_special_tokens=False)
    print(f"  {name}: {tokenizer.encoder_name} loaded and proven in {loading:.2f} s")
    for size in (200, 8_000, 100_000):
        part = tokenizer.decode(ids[:size])
        slow = fastest(lambda part=part: tokenizer._library_encode(part, False), 3) * 1e3
        fast = fastest(lambda part=part: tokenizer.encode(part, add_special_tokens=False), 3) * 1e3
        print(f"    {size:>7} tokens: {slow:9.2f} ms, {fast:9.3f} ms, {slow / fast:5.0f} times")


def main() -> None:
    """Print all tables. Arguments: directories of more tokenizers (with a tokenizer.json) to encode with."""
    multilingual = scripted_text()
    embedded = load_tokenizer(resolve_model("embedded"))
    print("ids to text, us a token        1 stream  64 streams  1024 streams")
    for name, tokenizer in (("embedded", embedded), ("scripted", load_scripted_tokenizer())):
        for label, text in (("English", ENGLISH), ("multilingual", multilingual)):
            figures = [detokenise(tokenizer, text, streams) for streams in (1, 64, 1024)]
            print(f"  {name}, {label:<16}" + "".join(f"{figure:12.3f}" for figure in figures))
    singles = [i for i in range(embedded.vocab_size) if embedded.decode([i]) == "\ufffd"]
    stray = next(i for i in singles if embedded.incremental().push([i]))
    begun = next(i for i in singles if not embedded.incremental().push([i]))
    for label, token_id in (("stray bytes", stray), ("characters begun", begun)):
        ids = [token_id] * 100_000
        seconds = fastest(lambda ids=ids: push_all(embedded, ids), ROUNDS)
        print(f"  100,000 {label + ' in one stream':<30}{seconds / len(ids) * 1e6:9.3f}")
    prove(embedded)
    print("stops, us a character")
    strings = tuple(f"stop {number} here" for number in range(32))
    regexes = tuple(rf"stop {number}\s+\w*!" for number in range(32))
    for label, make in (
        ("1 string", lambda: StopMatcher(["\n\nHuman:"])),
        ("32 strings", lambda: StopMatcher(strings)),
        ("1 regex", lambda: RegexMatcher(compile_patterns((r"\n\s*Human:",)))),
        ("32 regexes", lambda: RegexMatcher(compile_patterns(regexes))),
        ("always part of a match, `e.*Z`", lambda: RegexMatcher(compile_patterns(("(?s:e.*Z)",)))),
        ("400 starts under way at once", lambda: RegexMatcher(compile_patterns((r"(?s:.{400}\n\n\n)",)))),
    ):
        print(f"  {label:<33}{match(make, ENGLISH + multilingual):12.3f}")
    for pattern in ("(a+)+b", "(a|a)*b"):
        text = "a" * 50_000
        print(f"  {pattern} on 50,000 times a{match(lambda p=pattern: RegexMatcher(compile_patterns((p,))), text):15.3f}")
    print("text to ids: tokenizers, fastokens")
    encode("embedded", embedded)
    for directory in map(Path, sys.argv[1:]):
        encode(directory.name, Tokenizer(read_huggingface_tokenizer(directory)))


if __name__ == "__main__":
    main()
