"""The table that is printed, and whether the logits are good enough. Both from the report alone."""

from __future__ import annotations

from typing import Any

LEAST_AGREEMENT = 0.95  # bfloat16 turns a close race now and then
MOST_KL = 0.01  # nats; what a wrong mask or a lost key does is hundreds of times that


def table(report: dict[str, Any]) -> str:
    """The report in a few lines."""
    accuracy, tops = report["accuracy"], report["ceilings"]
    lines = [
        f"{report['model']} on {report['gpu']}, torch {report['torch']}, loaded in {report['load_s']} s",
        f"ceilings: {tops['gb_s']:.0f} GB/s, {tops['tflops']:.0f} TFLOP/s (bfloat16)",
        f"against float32 over {accuracy['tokens']} tokens: same best token {accuracy['argmax_agreement']:.1%}, "
        f"mean KL {accuracy['mean_kl']:.1e}, largest {accuracy['max_kl']:.1e}",
        f"decode steps against the whole sequence: same token {accuracy['decode_agreement']:.1%}",
        "",
        f"{'step':24}{'ms':>10}{'floor':>10}{'ratio':>8}{'tokens/s':>12}",
    ]
    lines += [
        f"{step['name']:24}{step['ms']:10.3f}{step['floor_ms']:10.3f}{step['ms'] / step['floor_ms']:8.1f}"
        f"{1000 * step['tokens'] / step['ms']:12,.0f}"
        for step in report["steps"]
    ]
    return "\n".join(lines)


def verdict(accuracy: dict[str, float]) -> str | None:
    """What is wrong with the logits; None where nothing is."""
    for name in ("argmax_agreement", "decode_agreement"):
        if accuracy[name] < LEAST_AGREEMENT:
            return f"the logits are wrong: {name} is {accuracy[name]:.3f}; it must be {LEAST_AGREEMENT} at least."
    if not accuracy["mean_kl"] <= MOST_KL:  # so that NaN fails, too
        return f"the logits are wrong: mean_kl is {accuracy['mean_kl']:.4f}; it must be {MOST_KL} at most."
    return None
