"""How near an executor's next-token distributions are to float32's, on real texts, teacher-forced; peers on the same ids.

    python -m benchmarks.accuracy
    python -m benchmarks.accuracy --peer 'llama.cpp=PYTHON benchmarks/accuracy/llama_cpp_logits.py FILE'

The reference is the torch executor, which computes the same file's weights in float32. For each contestant: in what share of
the positions both find the same next token most likely (argmax agreement, with the interval that so many positions allow), the
mean Kullback-Leibler divergence of its distribution from the reference's, the 99th percentile of it, and the root mean square
error of the logits, shifted to the same mean. Writes JSON and prints a table.

A peer is a command that takes a file of ids and a directory, and writes what `benchmarks/accuracy/logits.py` writes.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import by_name
from millstream.checkpoint.locate import resolve_model
from millstream.config import EMBEDDED_MODEL
from millstream.text.tokenizer import load_tokenizer

TEXTS = Path(__file__).parent / "texts"
LOGITS = [sys.executable, "-m", "benchmarks.accuracy.logits"]
ROWS = 64  # positions that are compared at a time, in float64


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithms of the probabilities, row by row."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def compare(reference: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[list[bool], list[float], list[float]]:
    """For each position: whether the argmax is the same, KL(reference || other) in nats, and the logits' mean square error."""
    same: list[bool] = []
    divergence: list[float] = []
    error: list[float] = []
    for start in range(0, len(reference), ROWS):
        ours, theirs = reference[start : start + ROWS], other[start : start + ROWS]
        p, q = log_softmax(ours), log_softmax(theirs)
        same += (ours.argmax(axis=1) == theirs.argmax(axis=1)).tolist()
        divergence += (np.exp(p) * (p - q)).sum(axis=1).tolist()
        error += (p - q).var(axis=1).tolist()
    return same, divergence, error


def judge(reference: Path, other: Path, count: int) -> dict[str, float]:
    """The figures of one contestant over `count` texts."""
    same: list[bool] = []
    divergence: list[float] = []
    error: list[float] = []
    for number in range(count):
        parts = compare(np.load(reference / f"{number}.npy"), np.load(other / f"{number}.npy"))
        for whole, part in zip((same, divergence, error), parts, strict=True):
            whole += part
    share = sum(same) / len(same)
    return {
        "positions": len(same),
        "argmax_agreement": round(share, 5),
        "plus_minus": round(1.96 * math.sqrt(share * (1 - share) / len(same)), 5),
        "kl_mean": round(float(np.mean(divergence)), 6),
        "kl_p99": round(float(np.percentile(divergence, 99)), 6),
        "logit_rms_error": round(math.sqrt(np.mean(error)), 5),
    }


def main() -> None:
    """Parse the command line, compute the reference, then everybody in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED_MODEL)
    parser.add_argument("--executors", nargs="*", default=["native"])
    parser.add_argument(
        "--ours", action="append", default=[], metavar="NAME=OPTIONS", help="an executor with options of logits.py"
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--texts", nargs="*", help="only these, by name")
    parser.add_argument("--out", type=Path, default=Path("accuracy.json"))
    options = parser.parse_args()
    tokenizer = load_tokenizer(resolve_model(options.model))
    paths = [path for path in sorted(TEXTS.glob("*.txt")) if not options.texts or path.stem in options.texts]
    texts = [tokenizer.encode(path.read_text(), add_special_tokens=False) for path in paths]
    ours = [*LOGITS, "--model", options.model]
    contestants = {name: [*ours, "--executor", name] for name in options.executors}
    contestants |= {name: [*ours, *shlex.split(rest)] for name, rest in by_name(options.ours).items()}
    contestants |= {name: shlex.split(command) for name, command in by_name(options.peer).items()}
    report: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:  # 200 KB a position: 0.8 GB each, for the reference and one contestant
        directory = Path(place)
        ids = directory / "ids.json"
        ids.write_text(json.dumps(texts))
        reference, other = directory / "reference", directory / "other"
        reference.mkdir()
        subprocess.run([*ours, str(ids), str(reference), "--executor", "torch"], check=True)
        for name, command in contestants.items():
            other.mkdir()
            subprocess.run([*command, str(ids), str(other)], check=True, stdout=subprocess.DEVNULL)
            report[name] = judge(reference, other, len(texts))
            shutil.rmtree(other)
            print(f"{name}: {report[name]}", file=sys.stderr, flush=True)
    options.out.write_text(
        json.dumps({"model": options.model, "texts": [len(text) for text in texts], "results": report}) + "\n"
    )
    print(
        "| | positions | argmax agreement | mean KL, nats | p99 KL | logit rms error |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name, each in report.items():
        agreement = f"{each['argmax_agreement']:.2%} ± {each['plus_minus']:.2%}"
        print(
            f"| {name} | {each['positions']} | {agreement} | {each['kl_mean']} | {each['kl_p99']} | {each['logit_rms_error']} |"
        )


if __name__ == "__main__":
    main()
