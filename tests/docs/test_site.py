"""The site builds from the repository alone, and no page of it needs another machine or leads nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parent.parent.parent


class Links(HTMLParser):
    """What a page loads, and what it leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if source := values.get("src"):
            self.loaded.append(source)
        if target := values.get("href"):
            is_loaded = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload")
            (self.loaded if is_loaded else self.linked).append(target)


@pytest.mark.long
def test_the_site_builds_without_the_network_and_leads_nowhere_in_vain(tmp_path: Path) -> None:
    site = tmp_path / "site"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # noqa: TID251
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert built.returncode == 0, built.stderr
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert site / "index.html" in pages
    assert site / "cli.html" in pages
    for page in pages:
        found = Links()
        found.feed(page.read_text())
        assert not [each for each in found.loaded if urlsplit(each).scheme in ("http", "https")], page
        for target in found.loaded + found.linked:
            parts = urlsplit(target)
            if not parts.scheme and parts.path:
                assert (page.parent / unquote(parts.path)).exists(), f"{target} in {page.relative_to(site)}"
