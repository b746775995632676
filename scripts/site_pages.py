"""What mkdocs is told beyond mkdocs.yml: pages that stand outside `docs`, links between both, and new pages in the navigation.

The repository's pages link to one another as files, which is how they are read there. On the site README.md is the front page,
and the files in `docs` lie at its root.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FRONT = "README.md"
BESIDE = (FRONT, "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that no section names into Guides, and into Reference those made from the code."""
    named = set(_named(config.nav))
    sections = {name: pages for each in config.nav or [] for name, pages in each.items()}
    docs = Path(config.docs_dir)
    for page in sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md")):
        if page not in named:
            sections["Reference" if page.startswith("reference/") else "Guides"].append(page)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages beside `docs`, and the benchmarks' with their pictures."""
    pages = [ROOT / name for name in BESIDE]
    pages += [each for each in ROOT.glob("benchmarks/**/*") if each.suffix in (".md", ".svg")]
    for path in pages:
        name = path.relative_to(ROOT).as_posix()
        if path.exists():
            files.append(File.generated(config, _on_site(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files into links between pages; what is no page stays as its words."""
    source = Path(page.file.abs_src_path or "").relative_to(ROOT).as_posix()

    def linked(found: re.Match[str]) -> str:
        image, words, target, anchor = found.groups()
        wanted = _on_site(posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))
        if files.get_file_from_path(wanted) is None:
            return words
        here = posixpath.dirname(page.file.src_uri)
        return f"{image}[{words}]({posixpath.relpath(wanted, here or '.')}{anchor or ''})"

    return LINK.sub(linked, markdown)


def _on_site(name: str) -> str:
    """Where a file of the repository is on the site."""
    return "index.md" if name == FRONT else name.removeprefix("docs/")


def _named(pages: Any) -> list[str]:
    if isinstance(pages, str):
        return [pages]
    inner = pages.values() if isinstance(pages, dict) else pages
    return [name for each in inner for name in _named(each)]
