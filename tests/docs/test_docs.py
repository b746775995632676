"""Documents that are made from the code are current, and the files they name exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def test_the_reference_is_current() -> None:
    result = subprocess.run([sys.executable, "scripts/make_reference.py", "--check"], cwd=ROOT, check=False)
    assert result.returncode == 0, "run: python scripts/make_reference.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_and_every_source_file_named_exists(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    for path in re.findall(r"`((?:src/millstream|tests|scripts|benchmarks)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    package = ROOT / "src" / "millstream"
    for path in re.findall(
        r"`((?:entry|scheduler|detokenizer|text|kv|execution|checkpoint|ipc|observe|launch|cli|messages)/[\w/]+\.py)`", text
    ):
        assert (package / path).exists(), path
