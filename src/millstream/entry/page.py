"""The web page: files of the folder `web`, as they are. Called by the routes `/` and `/page/{file}`.

The page is a client like any other: it uses the public API, with the key that its reader gives it. Its files hold no secret,
so they take no key. Read once; a browser asks each time whether what it has is current, and is answered with 304.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib import resources
from typing import NamedTuple

from millstream import __version__
from millstream.entry.failure import RequestFailed
from millstream.entry.http.errors import Header, not_found
from millstream.entry.http.exchange import Exchange
from millstream.entry.service import Service

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# nothing from elsewhere, nothing inline, and no string ever becomes markup: what a model says cannot be run
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_GUARDS: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # keep it, and ask
)


class File(NamedTuple):
    """One file of the page."""

    content: bytes
    type: str
    etag: bytes


@cache
def files() -> dict[str, File]:
    """All of them by name."""
    folder = resources.files("millstream.entry") / "web"
    found = {}
    for path in folder.iterdir():
        content = path.read_bytes()
        etag = b'"%s"' % sha256(content).hexdigest()[:32].encode()
        found[path.name] = File(content, _TYPES[path.name.rpartition(".")[2]], etag)
    return found


async def root(exchange: Exchange, service: Service) -> None:
    """The web page for a browser; for others, who is here."""
    accepts = exchange.header(b"accept") or b""
    if b"text/html" in accepts and not service.config.disable_page:
        await _send(exchange, files()[INDEX])
        return
    who = {"name": "millstream", "version": __version__, "openai_base_path": "/v1", "health": "/health", "info": "/server_info"}
    await exchange.send_json(who, headers=[(b"vary", b"Accept")])


async def page_file(exchange: Exchange, service: Service) -> None:
    """A file of the web page."""
    file = files().get(exchange.parameters["file"])
    if file is None or service.config.disable_page:
        raise RequestFailed(not_found(exchange.path))
    await _send(exchange, file)


async def _send(exchange: Exchange, file: File) -> None:
    headers = [*_GUARDS, (b"etag", file.etag), (b"vary", b"Accept")]
    known = exchange.header(b"if-none-match") or b""
    if file.etag in [each.strip().removeprefix(b"W/") for each in known.split(b",")]:
        await exchange.send_empty(headers, status=304)
    else:
        await exchange.send_text(file.content, file.type, headers=headers)
