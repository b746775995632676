"""What guessing tokens from prompt and output brings: tokens a step and tokens a second, with and without, over HTTP.

    python -m benchmarks.speculative.run
    python -m benchmarks.speculative.run --clients 1 4 16 --option speculative-num-draft-tokens=4

Starts two servers that differ in `--speculative-algorithm ngram` alone and asks them in turn, greedily: to say a text again, to
go on with an edited copy of code, and to tell a story. Prints a line for each workload and number of clients and writes all to
a JSON file. It also counts the texts that are the same from both; they are, but for two tokens that are all but equally likely,
which the rounding of another batch may decide.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.server import millstream

WORDS = ("river", "stone", "winter", "garden", "letter", "window", "market", "bridge", "copper", "harbour", "lantern")
TEXT = (
    "The {0} keeper of the {1} wrote down every ship that passed: its name, its cargo and the colour of its sails. When the "
    "{2} came he closed the book, put it on the shelf above the {3} and walked to the village, where nobody asked him what he "
    "had seen. In spring the book was gone, and in its place lay a {0} key that opened no door he knew of."
)
CODE = (
    "def total_{0}(items, {1}):\n    result = 0\n    for item in items:\n        if item.{1} is None:\n            continue\n"
    "        if item.{1} > {1}:\n            result += item.price * item.amount\n    return result\n\n\n"
    "def mean_{0}(items, {1}):\n    count = 0\n    for item in items:\n        if item.{1} is not None:\n"
    "            count += 1\n"
    "    return total_{0}(items, {1}) / count if count else 0\n"
)


def prompt(workload: str, index: int) -> str:
    """Prompt number `index` of a workload."""
    words = [WORDS[(index * 5 + offset) % len(WORDS)] for offset in range(4)]
    if workload == "repeat":
        text = TEXT.format(*words)
        return f"{text}\n\nThe same text once more, word for word:\n\n{text}\n\nAnd once more, word for word:\n\n{text[:40]}"
    if workload == "edit":
        code = CODE.format(*words)
        return f"# before\n{code}\n\n# after: `items` is called `orders`\n{code.replace('items', 'orders')[:60]}"
    return f"A story about a {words[0]}, a {words[1]} and a {words[2]}.\n\nOnce upon a time"


def call(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request; its JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def ask(url: str, workload: str, clients: int, tokens: int) -> dict[str, Any]:
    """Ask for one answer a client, all at once."""
    before = call(f"{url}/server_info")

    def one(index: int) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return call(f"{url}/generate", {"text": prompt(workload, index), "sampling_params": sampling})

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        answers = list(threads.map(one, range(clients)))
    seconds = time.perf_counter() - started
    after = call(f"{url}/server_info")
    made = [answer["meta_info"]["completion_tokens"] for answer in answers]
    steps = [answer["meta_info"].get("spec_verify_ct", count - 1) for answer, count in zip(answers, made, strict=True)]
    return {
        "tokens_per_s": sum(made) / seconds,
        "tokens_per_step": sum(count - 1 for count in made) / sum(steps),
        "drafted": after["spec_draft_tokens"] - before["spec_draft_tokens"],
        "accepted": after["spec_accepted_draft_tokens"] - before["spec_accepted_draft_tokens"],
        "texts": [answer["text"] for answer in answers],
    }


def compare(urls: dict[str, str], workload: str, clients: int, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one scenario, both servers in turn; prints a line."""
    for url in urls.values():
        ask(url, workload, clients, options.tokens)  # prompts are known from here on: what is measured is decoding
    rounds = [{name: ask(url, workload, clients, options.tokens) for name, url in urls.items()} for _ in range(options.rounds)]
    report: dict[str, Any] = {"workload": workload, "clients": clients}
    for name in urls:
        report[name] = {
            "tokens_per_s": round(statistics.median(each[name]["tokens_per_s"] for each in rounds), 1),
            "tokens_per_step": round(rounds[-1][name]["tokens_per_step"], 2),
        }
    last = rounds[-1]
    report["drafted"], report["accepted"] = last["ngram"]["drafted"], last["ngram"]["accepted"]
    pairs = zip(last["plain"]["texts"], last["ngram"]["texts"], strict=True)
    report["same_texts"] = sum(plain == guessed for plain, guessed in pairs)
    rates = [report[name]["tokens_per_s"] for name in ("plain", "ngram")]
    report["gain"] = round(rates[1] / rates[0], 2)
    print(
        f"{workload:7} {clients:3} clients: {rates[0]:7.1f} -> {rates[1]:7.1f} tokens/s ({report['gain']:.2f}x), "
        f"{report['ngram']['tokens_per_step']:.2f} tokens a step, {report['accepted']} of {report['drafted']} guesses right, "
        f"{report['same_texts']} of {clients} texts the same",
        flush=True,
    )
    return report


def main() -> None:
    """Parse the command line, start both servers, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--workloads", nargs="*", default=["repeat", "edit", "free"], choices=["repeat", "edit", "free"])
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of both servers")
    parser.add_argument("--ngram-option", action="append", default=[], metavar="NAME=VALUE", help="of the one that guesses")
    parser.add_argument("--out", type=Path, default=Path("speculative.json"))
    options = parser.parse_args()
    both = ["--log-level", "warning", "--max-total-tokens", "16384", *(f"--{option}" for option in options.option)]
    guesses = ["--speculative-algorithm", "ngram", *(f"--{option}" for option in options.ngram_option)]
    with millstream(both) as (plain, _), millstream([*both, *guesses]) as (ngram, _):
        urls = {"plain": plain, "ngram": ngram}
        runs = [compare(urls, workload, clients, options) for clients in options.clients for workload in options.workloads]
    options.out.write_text(json.dumps({"when": time.strftime("%F %T"), "machine": machine(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
