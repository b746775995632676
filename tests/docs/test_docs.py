"""Documents that are made from the code are current, and the files they name exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, by the rule of GitHub."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_reference_is_current() -> None:
    result = subprocess.run([sys.executable, "scripts/make_reference.py", "--check"], cwd=ROOT, check=False)
    assert result.returncode == 0, "run: python scripts/make_reference.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_and_every_source_file_named_exists(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    for page, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", text):
        target = document.parent / page if page else document
        assert anchor in anchors(target), f"{page}#{anchor}"
    for path in re.findall(r"`((?:src/millstream|tests|scripts|benchmarks)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    package = ROOT / "src" / "millstream"
    for path in re.findall(
        r"`((?:entry|scheduler|detokenizer|text|kv|execution|checkpoint|ipc|observe|launch|cli|messages)/[\w/]+\.py)`", text
    ):
        assert (package / path).exists(), path


def test_a_reader_who_begins_with_the_readme_finds_every_page() -> None:
    found: set[Path] = set()
    unread = [ROOT / "README.md"]
    while unread:
        page = unread.pop()
        found.add(page)
        for target in re.findall(r"\]\((?!http|#)([^)#]+\.md)", page.read_text()):
            linked = (page.parent / target).resolve()
            if linked not in found:
                unread.append(linked)
    assert {page for page in DOCUMENTS if page.is_relative_to(ROOT / "docs")} <= found
