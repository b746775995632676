"""Examples at the end of each command's help."""

from __future__ import annotations

SERVE = """
millstream serve
millstream serve path/to/model.gguf --port 8000 --api-key-file keys.txt
millstream serve --config server.yaml --dry-run
"""
LEDGER = """
millstream ledger
millstream ledger --rid chatcmpl-0123 --json
"""
DOCTOR = """
millstream doctor
millstream doctor --model path/to/model.gguf --port 8000
millstream doctor --url https://llm.example.com --admin-api-key-file keys.txt --json
"""
ENV = """
millstream env
millstream env --json > environment.json
"""
REPLAY = """
millstream replay recordings/1767225600000-0123abcd.jsonl
"""
COMPLETION = """
source <(millstream completion bash)
millstream completion zsh > ~/.zfunc/_millstream
millstream completion fish | source
"""


def examples_text(lines: str) -> str:
    """Commands, one a line, as help shows them."""
    return f"Examples:\n\n```\n{lines.strip()}\n```"
