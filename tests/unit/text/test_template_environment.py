"""What templates find in their sandbox, as in `transformers`, and what they may take."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from millstream.errors import RequestError, StartupError
from millstream.text import template_environment
from millstream.text.chat_template import ChatTemplate
from millstream.text.template_environment import Budget, TemplateTooLong, compile_template, run_template
from tests.support.transformers_chat import rendered

USER = [{"role": "user", "content": "a<b"}]


def run(source: str, budget: Budget | None = None, **variables: Any) -> str:
    return run_template(compile_template(source)[0], {"messages": USER, **variables}, budget or Budget())


DATA = "{'b': 'x < y & \"z\" — 天气', 'a': [1, 2.5, none, true]}"


@pytest.mark.parametrize(
    "source",
    [
        f"{{{{ {DATA} | tojson }}}}",
        f"{{{{ {DATA} | tojson(true) }}}}",
        f"{{{{ {DATA} | tojson(false, 2) }}}}",
        f"{{{{ {DATA} | tojson(indent=4) }}}}",
        f"{{{{ {DATA} | tojson(indent='\t') }}}}",
        f"{{{{ {DATA} | tojson(separators=(',', ':')) }}}}",
        f"{{{{ {DATA} | tojson(false, none, (',', ':'), true) }}}}",
        f"{{{{ {DATA} | tojson(ensure_ascii=true, sort_keys=true) }}}}",
        f"{{{{ {DATA} | tojson | length }}}}",
        "{{ missing | tojson }}",
        "{{ {1: 2} | tojson }}",
        "{{ {'a': 1} | dictsort }}{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}",
        "{{ messages | map(attribute='content') | join(',') }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{{ messages[0]['content'] is string }}{{ messages is sequence }}{{ messages[0] is mapping }}{{ none is none }}",
        "{{ ' a '.strip() + '|' ~ ' b ' | trim ~ 1 ~ none }}{{ 'a,b'.split(',')[::-1] }}{{ '%s-%d' % ('a', 2) }}",
        "{% set ns = namespace(x=0) %}{% for i in range(4) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
        "{% macro f(x, y='d') %}[{{ x }}{{ y }}]{{ caller() if caller else '' }}{% endmacro %}{{ f(1) }}"
        "{% call f(2) %}c{% endcall %}",
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% for i in range(3) %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex0 }}"
        "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('x', 'y') }}{% else %}none{% endfor %}",
        "{% for i in [] %}x{% else %}none{% endfor %}{% for i in missing %}x{% else %}none{% endfor %}",
        "{% for i in range(6) if i % 2 %}{{ i }}/{{ loop.length }}{% endfor %}",
        "{% for i in [[1, [2]], [3]] recursive %}{{ i if i is number else loop(i) }}{% endfor %}",
        "{% for m in messages[::-1] %}{{ m.content }}{{ loop.index0 }}{% endfor %}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{% filter upper %}a{% endfilter %}{% set x %}b{{ 1 }}{% endset %}{{ x }}{{ x is string }}",
        "  {% if true %}\n  a\n  {% endif %}\n{# c #}\nb\n",
        "{{ strftime_now('%Y-%m-%d') }}",
        "{{ 2 ** 10 }}{{ 3 * 'ab' }}{{ [1] + [2] }}{{ (1, 2) * 2 }}{{ 7 // 2 }}{{ -7 % 3 }}{{ 1 + 1.5 }}",
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__ }}",
        "{{ missing.attribute }}",
        "{{ range(100001) }}",
        "{{ fromjson('1') }}",
        "{% for x in none %}{% endfor %}",
    ],
)
def test_an_expression_gives_what_it_gives_in_transformers(source: str) -> None:
    try:
        text: str | None = run(source)
    except template_environment.RENDER_ERRORS:
        text = None
    assert text == rendered(source, USER)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("{% for %}", 1),
        ("a\nb\n{{ x", 3),
        ("\n\n{% nonsense %}", 3),
        ("\n{{ x | fromjson }}", 2),
        ("\n{% if a %}\n\n{% endfor %}", 4),
    ],
)
def test_a_broken_template_stops_the_start_with_its_line(source: str, line: int) -> None:
    with pytest.raises(StartupError, match=f"chat template is not valid, line {line}: "):
        ChatTemplate(source, {})


def test_a_template_nested_too_deeply_stops_the_start() -> None:
    with pytest.raises(StartupError, match="nested too deeply"):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", {})


ENDLESS = [
    pytest.param("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", id="loops-that-do-nothing"),
    pytest.param("{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}", id="loops-that-write"),
    pytest.param(
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", id="calls-that-double"
    ),
    pytest.param("{% for i in [99999] recursive %}{{ loop(range(i)) }}{% endfor %}", id="loops-that-call-themselves"),
]


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_without_end_is_ended(source: str) -> None:
    budget = Budget(max_steps=20_000)
    with pytest.raises(TemplateTooLong, match="20,000 steps"):
        run(source, budget)
    assert budget.steps == 20_001


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(90) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ 10 ** 12 * 'a' }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_of_little_is_ended(source: str) -> None:
    with pytest.raises(TemplateTooLong, match="characters"):
        run(source)


def test_a_template_that_takes_too_long_is_ended() -> None:
    seconds = iter(range(0, 1000, 5))
    budget = Budget(clock=lambda: float(next(seconds)))
    with pytest.raises(TemplateTooLong, match="20 seconds"):
        run("{% for i in range(99999) %}{{ messages | length }}{% endfor %}", budget)


def test_a_template_that_never_ends_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_environment.Budget.__init__, "__kwdefaults__", {"max_steps": 9_000, "clock": lambda: 0.0})
    with pytest.raises(StartupError, match="does not come to an end"):
        ChatTemplate("{% for i in range(99999) %}{% endfor %}", {})
    slow = ChatTemplate("{{ messages[0].content }}{% for i in range(count or 0) %}{% endfor %}", {})
    with pytest.raises(RequestError, match="did not come to an end") as caught:
        slow.render(USER, kwargs={"count": 9_001})
    assert (caught.value.status, caught.value.param) == (400, "messages")
    assert slow.render(USER, kwargs={"count": 8_000}) == "a<b"


@pytest.mark.parametrize(("source", "is_slow"), [("{{ messages }}", False), ("{% for i in range(20000) %}{% endfor %}", True)])
def test_a_template_that_has_much_to_do_for_a_few_words_is_known(source: str, is_slow: bool) -> None:
    assert ChatTemplate(source, {}).is_slow is is_slow


def test_two_renderings_do_not_share_a_budget() -> None:
    template = compile_template("{% for i in range(600) %}{% endfor %}{{ messages | length }}")[0]
    for _ in range(3):
        assert run_template(template, {"messages": USER}, Budget(max_steps=700)) == "1"


def test_a_template_cannot_name_what_counts_its_steps() -> None:
    for name in ("counted by the budget", "joined within the budget"):
        with pytest.raises(jinja2.TemplateSyntaxError):
            compile_template("{{ x | " + name + " }}")
