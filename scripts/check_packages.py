"""Build sdist and wheel as they would be published, install the wheel where nothing else of ours is, and have it serve.

python scripts/check_packages.py [--with-dependencies] [--keep DIRECTORY]

The wheel is built from the sdist, by pip's own isolation, C++ and all: a minute or two. What the checkout has in `src` must be
in both (sources of the extension in the sdist alone). The wheel's environment sees the libraries of this interpreter, unless
`--with-dependencies` has pip install them anew. Exits with 1 where anything is wrong. `make packages-check` calls it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD_S, INSTALL_S, START_S, STOP_S, ANSWER_S = 900, 900, 120, 60, 60
SOURCES_ONLY = {".cpp", ".h"}
NEVER = {".so", ".pyc"}  # built in the checkout, and not there before


def sources() -> set[str]:
    """The package's files in the checkout, from `src` on."""
    files = {each for each in (ROOT / "src" / "millstream").rglob("*") if each.is_file()}
    return {each.relative_to(ROOT / "src").as_posix() for each in files if each.suffix not in NEVER}


def build(directory: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made of it."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT)], check=True, timeout=BUILD_S)
    (sdist,), (wheel,) = directory.glob("*.tar.gz"), directory.glob("*.whl")
    return sdist, wheel


def check_contents(wanted: set[str], sdist: Path, wheel: Path) -> None:
    """Nothing of the package is missing; `wanted` is what the checkout had."""
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/src/")[2] for name in archive.getnames() if "/src/" in name}
    with zipfile.ZipFile(wheel) as archive:
        wheeled = set(archive.namelist())
    if missing := wanted - packed:
        raise SystemExit(f"{sdist.name} lacks {sorted(missing)}")
    if missing := {name for name in wanted if Path(name).suffix not in SOURCES_ONLY} - wheeled:
        raise SystemExit(f"{wheel.name} lacks {sorted(missing)}")
    if surplus := {name for name in wheeled if Path(name).suffix in SOURCES_ONLY or name.startswith("tests")}:
        raise SystemExit(f"{wheel.name} has {sorted(surplus)}")


def install(wheel: Path, directory: Path, *, with_dependencies: bool) -> Path:
    """An environment with the wheel in it; returns its `bin`."""
    venv.create(directory, with_pip=True)
    programs = directory / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *([] if with_dependencies else ["--no-deps"]), str(wheel)], check=True, timeout=INSTALL_S)
    if not with_dependencies:
        # behind its own folder, and without the `.pth` files of this one: an editable installation of ours is not seen
        (folder,) = directory.glob("lib/python*/site-packages")
        (folder / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def serve(programs: Path, elsewhere: Path) -> None:
    """Start the server with the scripted executor, ask it for one answer, and stop it."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # noqa: TID251
    environment = [programs / "millstream", "env", "--json"]
    found = json.loads(
        subprocess.run(environment, cwd=elsewhere, env=variables, check=True, capture_output=True, timeout=60).stdout
    )
    print(f"installed: {found['millstream']}, native: {found['executors']['native']}")
    command = [programs / "millstream", "serve", "--executor", "scripted", "--port", "0"]
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, cwd=elsewhere, env=variables, stdout=told, stderr=log)
        try:
            print(f"answered: {ask(ready_url(server, told.fileno()))!r}")
            server.send_signal(signal.SIGTERM)
            if status := server.wait(STOP_S):
                raise SystemExit(f"the server ended with {status}")
        except BaseException:
            server.kill()
            server.wait()
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
            raise


def ready_url(server: subprocess.Popen[bytes], told: int) -> str:
    """Where the server is, once it has written so to the file `told`."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(rb"Millstream is ready: (\S+)\n", os.pread(told, 65536, 0)):
            return found.group(1).decode()
        time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def ask(url: str) -> str:
    """One answer."""
    body = {"messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=ANSWER_S) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    if not text:
        raise SystemExit("the answer is empty")
    return text


def main() -> None:
    """Build, look, install, serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with-dependencies", action="store_true")
    parser.add_argument("--keep", type=Path, help="a directory for the packages, to keep them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.keep or Path(scratch) / "dist"
        directory.mkdir(parents=True, exist_ok=True)
        wanted = sources()
        sdist, wheel = build(directory)
        check_contents(wanted, sdist, wheel)
        programs = install(wheel, Path(scratch) / "environment", with_dependencies=options.with_dependencies)
        serve(programs, Path(scratch))
    print("the packages are well")


if __name__ == "__main__":
    main()
