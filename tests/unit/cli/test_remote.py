"""The client of the commands: streams of events from any OpenAI server, and what is said where it fails."""

from __future__ import annotations

import pytest

from millstream.cli.client import ServerError, Unreachable
from millstream.cli.remote import Remote
from tests.support.sse_server import deltas, openai_stand_in

PATH = "/v1/chat/completions"


def test_a_stream_is_its_events_whatever_stands_between_them() -> None:
    sent = [": alive\n\n", *deltas("one", "two"), 'event: x\r\ndata: {"choices": []}\r\n\r\n']
    with openai_stand_in(lambda _: sent) as server, Remote(url=server.url).stream(PATH, {"stream": True}) as stream:
        events = list(stream)
    assert events == [*deltas("one", "two"), {"choices": []}]
    assert server.bodies == [{"stream": True}]
    assert stream.headers["content-type"] == "text/event-stream"


def test_the_url_may_end_in_v1_and_of_several_keys_the_first_is_sent() -> None:
    with openai_stand_in(lambda _: deltas("x")) as server:
        remote = Remote(url=f"{server.url}/v1/", api_key="one two")
        assert remote.model_name() == "tiny"
        with remote.stream(PATH, {}, {"traceparent": "00-x"}) as stream:
            assert list(stream) == deltas("x")
    (headers,) = server.headers
    assert (headers["authorization"], headers["traceparent"]) == ("Bearer one", "00-x")


def test_a_named_model_is_asked_for_without_a_look_at_the_list() -> None:
    assert Remote(url="http://127.0.0.1:1", model="mine").model_name() == "mine"


@pytest.mark.parametrize("listed", [{}, {"data": []}, {"data": [{"name": "x"}]}, {"data": "x"}])
def test_a_server_that_lists_no_model_needs_one_named(listed: dict[str, object]) -> None:
    with openai_stand_in(lambda _: [], {"/v1/models": listed}) as server, pytest.raises(ServerError, match="lists no model"):
        Remote(url=server.url).model_name()


def test_an_error_is_said_with_its_status_and_the_server_s_own_words() -> None:
    refusal = (429, {"error": {"message": "too many", "type": "overload"}})
    with openai_stand_in(lambda _: refusal) as server, pytest.raises(ServerError, match="429: too many") as caught:
        Remote(url=server.url).stream(PATH, {})
    assert caught.value.http_status == 429


@pytest.mark.parametrize(
    ("event", "message"),
    [({"error": {"message": "it died"}}, "it died"), ({"error": "plain"}, "plain"), ("data: {x\n\n", "no JSON")],
)
def test_an_error_within_a_stream_ends_it(event: object, message: str) -> None:
    with openai_stand_in(lambda _: [*deltas("a"), event]) as server, Remote(url=server.url).stream(PATH, {}) as stream:
        events = iter(stream)
        assert next(events) == deltas("a")[0]
        with pytest.raises(ServerError, match=message):
            list(events)


def test_a_stream_that_ends_without_its_mark_was_cut_off() -> None:
    with openai_stand_in(lambda _: deltas("a"), done=False) as server, Remote(url=server.url).stream(PATH, {}) as stream:
        events = iter(stream)
        assert [next(events), next(events)] == deltas("a")
        with pytest.raises(ServerError, match="before it was complete"):
            next(events)


def test_where_nobody_listens_the_hint_says_what_to_do() -> None:
    with pytest.raises(Unreachable, match="no server answers") as caught:
        Remote(url="http://127.0.0.1:1").stream(PATH, {})
    assert caught.value.hint is not None
