"""The web page's files: served to browsers as they are, guarded, cached by their content, and complete without the network."""

from __future__ import annotations

import re

import pytest

from millstream.config import ServerConfig
from millstream.entry.page import INDEX, files
from tests.support.asgi import Call, Response, run
from tests.support.engine import Entry

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "content-type": None}


def fetch(path: str, config: ServerConfig | None = None, *, method: str = "GET", **headers: str | None) -> Response:
    async def scenario() -> Response:
        entry = Entry(config, ready=False)  # the page is there while the model loads
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await Call(entry.app, path, b"", method=method, headers=BROWSER | named).response()

    return run(scenario())


def test_a_browser_gets_the_page_and_others_learn_who_is_here() -> None:
    page = fetch("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>Millstream</title>" in page.content
    other = fetch("/", accept="*/*")
    assert (other.status, other.body["name"]) == (200, "millstream")
    assert page.headers["vary"] == other.headers["vary"] == "Accept"


@pytest.mark.parametrize("name", sorted(files()))
def test_each_file_has_its_type_and_the_guards_of_the_page(name: str) -> None:
    response = fetch(f"/page/{name}", accept="*/*")
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
    assert response.status == 200
    assert response.headers["content-type"].startswith(kind)
    assert response.headers["content-length"] == str(len(response.content))
    assert response.headers["x-content-type-options"] == "nosniff"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    first = fetch("/page/app.js")
    assert first.headers["cache-control"] == "no-cache"
    etag = first.headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        again = fetch("/page/app.js", if_none_match=known)
        assert (again.status, again.content, again.headers["etag"]) == (304, b"", etag)
    assert fetch("/page/app.js", if_none_match='"other"').status == 200


@pytest.mark.parametrize("name", ["nope.js", "../page.py", "..%2fpage.py", "/etc/passwd", "", "web/app.js"])
def test_nothing_but_the_page_s_files_is_served(name: str) -> None:
    assert fetch(f"/page/{name}").status == 404


def test_the_page_takes_no_key_and_what_it_asks_for_does() -> None:
    config = ServerConfig(api_key=("user",), admin_api_key=("admin",))
    for path in ("/", "/page/app.js"):
        assert fetch(path, config).status == 200
    for path in ("/v1/capabilities", "/server_info", "/debug/radix", "/debug/ledger"):
        assert fetch(path, config).status == 401


def test_the_page_can_be_left_out() -> None:
    config = ServerConfig(disable_page=True)
    assert fetch("/", config).body["name"] == "millstream"
    assert fetch("/page/app.js", config).status == 404


def test_a_post_is_refused() -> None:
    assert fetch("/page/app.js", method="POST").status == 405


def test_all_that_the_page_loads_is_in_it() -> None:
    for name, file in files().items():
        text = file.content.decode()
        for address in re.findall(r"https?://[^\s\"'`)]+", text):
            assert address == "http://www.w3.org/2000/svg" or "\\" in address, (name, address)  # a name, and a pattern
        for target in re.findall(r'(?:src|href)="page/([^"]+)"|from "\./([^"]+)"', text):
            assert "".join(target) in files(), (name, target)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text), name


def test_what_is_inline_is_nothing() -> None:
    text = files()[INDEX].content.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)
