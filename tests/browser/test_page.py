"""The page in a browser: what a person sees of answers, tokens, counts and the tree, by mouse, by keyboard, and on a phone."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route

from millstream.entry.page import files
from tests.support.browser import ask, opened_page, show

pytestmark = pytest.mark.timeout(300)
VIEWS = ("chat", "tokens", "live", "tree", "requests", "ledger")
HOSTILE = '<img src=x onerror="document.body.dataset.hacked=1"><script>document.body.dataset.hacked=1</script>'


def script(*pieces: Any, **more: Any) -> str:
    inner = json.dumps({"pieces": list(pieces), **more}).replace("<", "\\u003c")  # the last tag of a prompt begins its script
    return f"<script>{inner}</script>"


def answer(page: Page) -> Any:
    """The last answer's card."""
    return page.locator(".message.assistant").last


def test_an_answer_is_streamed_and_its_markdown_is_shown(page: Page) -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    code = "```python\nprint(1)\n```\n\n"
    ask(page, script("# Title\n\nSome **bold** and `code`.\n\n", "- one\n- two\n\n", code, table))
    card = answer(page)
    assert card.locator("h3").inner_text() == "Title"
    assert card.locator("strong").inner_text() == "bold"
    assert card.locator("li").all_inner_texts() == ["one", "two"]
    assert card.locator("pre code").inner_text() == "print(1)"
    assert card.locator("td").all_inner_texts() == ["1", "2"]
    assert re.match(r"complete · \d+ tokens in.* · first after ", card.locator(".end").inner_text())


def test_a_conversation_goes_on_with_what_was_said(page: Page) -> None:
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if "chat/completions" in request.url else None)
    page.click("#settings summary")
    page.fill("#setting-system", "Be brief.")
    page.fill("#setting-temperature", "0.5")
    page.fill("#setting-more", '{"top_k": 7}')
    ask(page, script("first"))
    ask(page, script("second"))
    assert page.locator(".message").count() == 4
    last = bodies[-1]
    assert [message["role"] for message in last["messages"]] == ["system", "user", "assistant", "user"]
    assert last["messages"][2]["content"] == "first"
    assert (last["temperature"], last["top_k"]) == (0.5, 7)
    page.click("#clear")
    assert page.locator(".message").count() == 0


def test_what_a_model_says_is_never_run(page: Page) -> None:
    ask(page, script(HOSTILE, "\n\n[press](javascript:document.body.dataset.hacked=1) **", HOSTILE, "**"))
    card = answer(page)
    assert HOSTILE in card.inner_text()
    assert card.locator("img, script, a:not(.end a)").count() == 0
    assert page.get_attribute("body", "data-hacked") is None
    show(page, "tokens")
    page.wait_for_selector("#tokens[data-state=done]")
    show(page, "tree")
    page.wait_for_selector("#tree[data-state=shown]")
    assert page.get_attribute("body", "data-hacked") is None


def test_stop_ends_the_answer_and_says_how(page: Page) -> None:
    page.fill("#prompt", script("word", step_ms=20, finish="length"))
    page.press("#prompt", "Enter")
    page.wait_for_selector("#chat[data-state=streaming]")
    page.click("#stop")
    page.wait_for_selector("#chat[data-state=stopped]")
    error = answer(page).locator(".error").inner_text()
    assert "aborted" in error
    assert answer(page).locator(".content").inner_text().startswith("word")
    ask(page, script("fine"))  # and the next one is answered


def test_an_error_is_shown_with_its_field_and_the_message_can_be_mended(page: Page) -> None:
    page.click("#settings summary")
    page.fill("#setting-temperature", "-1")
    ask(page, script("fine"), state="error")
    assert "field: temperature" in answer(page).locator(".error").inner_text()
    assert page.get_attribute("#setting-temperature", "aria-invalid") == "true"
    assert "<script>" in page.input_value("#prompt")
    page.fill("#setting-temperature", "")
    page.click("#send")
    page.wait_for_selector("#chat[data-state=done]")
    assert page.get_attribute("#setting-temperature", "aria-invalid") is None


def test_json_that_is_none_is_told_before_anything_is_sent(page: Page) -> None:
    page.click("#settings summary")
    page.fill("#setting-more", "{")
    page.fill("#prompt", "x")
    page.click("#send")
    page.wait_for_selector("#fault:not([hidden])")
    assert "no JSON" in page.inner_text("#fault")
    assert page.input_value("#prompt") == "x"


def test_a_failure_within_a_stream_is_shown_beside_what_there_was(page: Page) -> None:
    ask(page, script("some", " text", fault={"kind": "error", "after": 2}), state="error")
    assert answer(page).locator(".content").inner_text() == "some text"
    assert "code: engine_error" in answer(page).locator(".error").inner_text()


def test_reasoning_is_folded_and_tool_calls_are_shown(page: Page) -> None:
    def told(route: Route) -> None:
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": ""}, {"reasoning_content": "Let me"}, {"reasoning_content": " see."},
            {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Ulm"}'}}]},
        ]  # fmt: skip
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", told)
    ask(page, "What is the weather?")
    card = answer(page)
    assert not card.locator(".reasoning .plain").is_visible()
    card.locator(".reasoning summary").click()
    assert card.locator(".reasoning .plain").inner_text() == "Let me see."
    assert card.locator(".call").get_attribute("data-name") == "weather"
    assert json.loads(card.locator(".call pre").inner_text()) == {"city": "Ulm"}


def test_text_files_go_with_a_message_and_pictures_are_refused_by_capability(page: Page) -> None:
    page.set_input_files("#attach", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"a note"}])
    page.wait_for_selector(".attached li")
    page.set_input_files("#attach", [{"name": "cat.png", "mimeType": "image/png", "buffer": b"\x89PNG"}])
    page.wait_for_selector("#fault:not([hidden])")
    assert "takes no pictures" in page.inner_text("#fault")
    ask(page, script("thanks"))
    assert "a note" in page.locator(".message.user").inner_text()
    assert page.locator(".attached li").count() == 0


def test_tokens_have_bytes_probabilities_and_alternatives_and_say_why_they_were_held_back(page: Page) -> None:
    page.click("#settings summary")
    page.fill("#setting-stop", "END")
    ask(page, script("price ", {"bytes": "e282"}, {"bytes": "ac"}, " EN", "X", "EN", "D", step_ms=10))
    show(page, "tokens")
    page.wait_for_selector("#tokens[data-state=done]")
    shown = page.locator(".token[data-at]").all_inner_texts()
    assert [each for each in shown if each.startswith("‹")] == ["‹e2›", "‹82›", "‹ac›"]
    page.locator(".token[data-at]", has_text="‹e2›").click()
    detail = page.inner_text("#token")
    assert re.search(r"Log probability\s+-\d", detail)
    assert re.search(r"Was held back\s+for 1 step .*a part of a character", detail)
    assert page.locator(".alternatives tbody tr").count() == 5
    assert "(this one)" in page.inner_text(".alternatives")
    page.locator(".token[data-at]", has_text=re.compile("^E$")).first.click()
    assert "the start of a stop string" in page.inner_text("#token")
    page.wait_for_selector("#held .notice[data-why=matched]")
    assert "“END”" in page.inner_text("#held")


def test_text_that_is_held_back_is_seen_while_it_is(page: Page) -> None:
    page.click("#settings summary")
    page.fill("#setting-stop", "END")
    page.fill("#prompt", script("one EN", "D", step_ms=3_000_000))
    page.press("#prompt", "Enter")
    show(page, "tokens")
    page.wait_for_selector("#held .notice[data-why=stop]")
    assert "“EN”" in page.inner_text("#held")
    show(page, "chat")
    page.click("#stop")
    page.wait_for_selector("#chat[data-state=stopped]")


def test_the_dashboard_shows_what_runs(page: Page, scripted_server: str) -> None:
    body = {
        "messages": [{"role": "user", "content": script("x", step_ms=20, finish="length")}],
        "stream": True,
        "max_tokens": 100_000,
    }
    with httpx.stream("POST", f"{scripted_server}/v1/chat/completions", json=body, timeout=120) as response:
        parts = response.iter_bytes()  # kept: the answer ends with it
        next(parts)
        show(page, "live")
        page.wait_for_selector("#live[data-state=shown]")
        page.wait_for_selector("#tile-running .number:text('1')")
        assert page.locator("#processes tbody tr").count() == 3
        assert set(page.locator("#processes tbody td.good").all_inner_texts()) == {"READY"}
        show(page, "ledger")
        page.wait_for_selector("#ledger-body td:text('decode_status')")
    page.wait_for_selector("#ledger[data-held='0']")
    assert "balanced" in page.inner_text("#mismatches")
    show(page, "live")
    page.wait_for_selector("#tile-running .number:text('0')")
    assert "takes requests" in page.inner_text("#readiness")


def test_the_tree_shows_what_prompts_share(page: Page, scripted_server: str) -> None:
    shared = "A long beginning that both prompts share, of more than one page of tokens. "
    for end in ("The first end, which goes on for some pages of tokens.", "Another end, which goes on for as many."):
        body = {"prompt": shared + end, "max_tokens": 2, "cache_salt": "tree"}
        httpx.post(f"{scripted_server}/v1/completions", json=body, timeout=120).raise_for_status()
    show(page, "tree")
    page.wait_for_selector("#tree[data-state=shown]")
    items = page.locator("[role=treeitem]")
    top = items.filter(has_text="A long beginning").first
    top.click()
    detail = page.inner_text("#node")
    assert "at the beginning of a prompt" in detail
    assert "nobody: it can make room" in detail
    assert "2 nodes" in detail


def test_requests_are_listed_and_one_is_shown_in_full(page: Page) -> None:
    ask(page, script("hello ", "you"))
    rid = answer(page).get_attribute("data-rid")
    answer(page).locator("text=timeline").click()
    page.wait_for_selector(f"#requests[data-shown='{rid}']")
    stages = page.locator(".waterfall .stage").evaluate_all("items => items.map((item) => item.dataset.name)")
    assert [name for name in stages if name in ("queue", "prefill", "decode")] == ["queue", "prefill", "decode"]
    assert page.locator("#why li").count() >= 1
    page.click("text=All requests")
    page.wait_for_selector("#requests[data-shown=list]")
    page.wait_for_selector(f"#requests tr[data-rid='{rid}'][data-state=ended]")


def test_a_request_that_nobody_knows_is_said_to_be_unknown(page: Page) -> None:
    page.evaluate("location.hash = '#requests/nobody'")
    page.wait_for_selector("#requests [role=alert]:not([hidden])")
    assert "request_not_found" in page.inner_text("#requests [role=alert]")


def focus(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 30)"))


def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(page: Page) -> None:
    found = []
    for _ in range(15):
        page.keyboard.press("Tab")
        found.append(focus(page))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", found[-1]
    assert found[0] == "skip"
    assert found[1:7] == ["Chat", "Tokens", "Live", "Tree", "Requests", "Ledger"]
    assert found[7:11] == ["theme", "key", "help", "prompt"]
    assert found[11] == "send"
    assert {"clear", "attach-button"} <= set(found)


def test_keys_do_what_the_help_says(page: Page) -> None:
    page.locator("body").press("?")
    page.wait_for_selector("#help-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help-dialog:not([open])", state="attached")
    for number, view in enumerate(VIEWS, start=1):
        page.locator("body").press(str(number))
        page.wait_for_selector(f"body[data-view={view}]")
        assert page.locator(f"#views a[href='#{view}']").get_attribute("aria-current") == "page"
    page.locator("body").press("/")
    page.wait_for_selector("body[data-view=chat]")
    page.wait_for_function("document.activeElement.id === 'prompt'")
    page.keyboard.type("1?t/")  # in a field they are letters
    assert page.input_value("#prompt") == "1?t/"
    assert page.get_attribute("body", "data-view") == "chat"


def test_tokens_are_walked_with_the_arrow_keys(page: Page) -> None:
    ask(page, script("one", " two", " three"))
    show(page, "tokens")
    page.wait_for_selector("#tokens[data-state=done]")
    first = page.locator(".token[data-at]").first
    first.focus()
    first.press("ArrowRight")
    page.wait_for_selector(".token[data-at='1'][aria-current=true]")
    assert page.inner_text("#token h2") == "Token 2"
    page.locator(".token[data-at='1']").press("End")
    page.wait_for_selector(".token[data-at]:last-child[aria-current=true], li:last-child .token[aria-current=true]")
    assert page.locator(".lane [tabindex='0']").count() == 1


def test_an_answer_is_announced(page: Page) -> None:
    ask(page, script("done"))
    assert page.get_attribute("#announcer", "aria-live") == "polite"
    assert page.inner_text("#announcer") == "The answer is complete"


def test_every_control_has_a_name(page: Page) -> None:
    ask(page, script("one"))
    for view in VIEWS:
        show(page, view)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, a, input, select, textarea')].filter(
                (each) => !each.textContent.trim() && !each.ariaLabel && !each.labels?.length && each.id !== 'attach'
            ).map((each) => each.outerHTML)"""
        )
        assert nameless == []


def test_the_theme_can_be_chosen_and_is_kept(browser: Browser, scripted_server: str) -> None:
    with opened_page(browser, scripted_server, color_scheme="dark") as page:
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(background)
        page.click("#theme")
        light = page.evaluate(background)
        assert (page.inner_text("#theme"), light) == ("Theme: light", "rgb(255, 255, 255)")
        page.click("#theme")
        assert page.evaluate(background) == dark != light
        page.reload(wait_until="commit")
        page.wait_for_selector("body[data-model]")
        assert page.inner_text("#theme") == "Theme: dark"


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_shows_every_view_without_scrolling_sideways(browser: Browser, scripted_server: str, view: str) -> None:
    size = {"width": 360, "height": 640}
    with opened_page(browser, scripted_server, viewport=size, is_mobile=True, has_touch=True) as page:
        table = "| a | b | c |\n|---|---|---|\n| " + "y" * 80 + " | 2 | 3 |"
        ask(page, script("A word without" + "x" * 200 + " an end.\n\n", table))
        show(page, view)
        if view in ("live", "tree", "ledger"):
            page.wait_for_selector(f"#{view}[data-state=shown]")
        edges = "[...document.querySelectorAll('main *')].map((each) => [each.getBoundingClientRect().right, each.className])"
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, page.evaluate(edges)


def test_it_works_after_the_network_is_gone_but_for_the_server(page: Page) -> None:
    # the fixture lets no request reach another host, so what was loaded here came from the server alone
    loaded = page.evaluate("performance.getEntriesByType('resource').map((entry) => new URL(entry.name).pathname)")
    assert {f"/page/{name}" for name in files() if name.endswith((".js", ".css"))} <= set(loaded)
