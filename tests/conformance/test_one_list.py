"""One list of questions, each asked plain and streamed on every route that takes it: the stream is the plain answer."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.conformance.cases import MODEL, SCRIPTED, Case
from tests.support.chat import assert_serves
from tests.support.routes import ROUTES, Answer

PROMPTS_OF_THEIR_OWN = [("chat", "messages", "responses"), ("completions", "generate, deltas", "generate, so far")]


@pytest.fixture
def scripted(scripted_server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=scripted_server, timeout=60) as client:
        yield client
    assert_serves(scripted_server)


@pytest.fixture
def model(model_server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=model_server, timeout=60) as client:
        yield client


def answers(client: httpx.Client, case: Case) -> dict[str, Answer]:
    """The answer of each route that takes the question: the same plain and streamed."""
    found = {}
    for name, route in ROUTES.items():
        if route.takes(case.question):
            plain, streamed = route.ask(client, case.question), route.ask_streamed(client, case.question)
            assert streamed == plain, name
            assert len(plain.choices) == len(case.question.prompts) * case.question.fields.get("n", 1)
            found[name] = plain
    assert found, "no route takes this question"
    return found


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_stream_says_what_the_plain_answer_says(scripted: httpx.Client, name: str) -> None:
    case = SCRIPTED[name]
    for route, answer in answers(scripted, case).items():
        for choice in answer.choices:
            assert case.text is None or choice.text == case.text, route
            assert choice.finish == case.finish, route
            if case.matched is not None and route != "responses":
                assert choice.matched == case.matched, route


@pytest.mark.long
@pytest.mark.parametrize("name", MODEL)
def test_so_it_does_with_a_model_and_routes_of_one_prompt_say_the_same(model: httpx.Client, name: str) -> None:
    found = answers(model, MODEL[name])
    for routes in PROMPTS_OF_THEIR_OWN:
        texts = [[choice.text for choice in found[route].choices] for route in routes if route in found]
        assert all(each == texts[0] for each in texts), routes


def test_every_route_is_asked_many_questions() -> None:
    for name, route in ROUTES.items():
        assert sum(route.takes(case.question) for case in SCRIPTED.values()) >= 15, name
    fields = {field for case in SCRIPTED.values() for field in case.question.fields}
    assert fields == set().union(*(route.fields for route in ROUTES.values()))
