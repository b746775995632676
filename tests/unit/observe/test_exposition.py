"""What a scraper reads: both formats parse, say the same, and the aliases have our numbers."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from millstream.messages import Measures, Timing
from millstream.observe import families
from millstream.observe.aliases import ALIASES
from millstream.observe.exposition import expose, prefers_openmetrics
from millstream.observe.families import BY_NAME
from millstream.observe.log import RequestEnd
from millstream.observe.recorder import Recorder
from millstream.observe.tally import Tally, sample

OPENMETRICS = "application/openmetrics-text"


def some() -> list[Measures]:
    tally = Tally("entry")
    recorder = Recorder(tally)
    timing = Timing(received=1.0, adapted=1.0, queued=1.0, admitted=1.5, prefilled=2.0, decoded=3.0, written=3.0)
    for cause in ("stop", "stop", "length", "client_gone", "engine_error", "rejected"):
        recorder.record(RequestEnd("r", "chat", "m", cause, 20, 16, 5, timing, ended=9.0))
    recorder.refused("/v1/models/{model}", 404)
    recorder.grammar("ok", 0.1)
    scheduler = Tally("scheduler").measures(
        [sample(families.RUNNING, 3), sample(families.USAGE, 0.25), sample(families.PROMPT_TOKENS, 100)]
    )
    return [each for each in (tally.measures(), scheduler) if each is not None]


def values(text: str, parse: object = parse_plain) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in parse(text):  # type: ignore[operator]
        for each in family.samples:
            found[each.name, tuple(sorted(each.labels.items()))] = each.value
    return found


def test_both_formats_say_the_same() -> None:
    plain, plain_type = expose(some(), "m")
    other, other_type = expose(some(), "m", OPENMETRICS)
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert other_type.startswith(f"{OPENMETRICS}; version=1.0.0")
    assert other.endswith(b"# EOF\n")
    assert values(plain.decode()) == values(other.decode(), parse_openmetrics)


def test_the_size_of_the_kv_cache_is_in_labels_under_both_names() -> None:
    told = Tally("entry").measures([sample(families.KV_CACHE, 1, "16", "64")])
    assert told is not None
    found = values(expose([told], "m")[0].decode())
    assert found["millstream:kv_cache_info", (("num_pages", "64"), ("page_size", "16"))] == 1
    asked = (("block_size", "16"), ("engine", "0"), ("model_name", "m"), ("num_gpu_blocks", "64"))
    assert found["vllm:cache_config_info", asked] == 1


def test_aliases_have_the_numbers_of_ours() -> None:
    found = values(expose(some(), "m")[0].decode())
    labels = (("engine", "0"), ("model_name", "m"))
    assert found["vllm:num_requests_running", labels] == found["millstream:requests_running", ()] == 3
    assert found["vllm:kv_cache_usage_perc", labels] == found["vllm:gpu_cache_usage_perc", labels] == 0.25
    assert found["vllm:prompt_tokens_total", labels] == 100
    reasons = {
        dict(key)["finished_reason"]: value for (name, key), value in found.items() if name == "vllm:request_success_total"
    }
    assert reasons == {"stop": 2, "length": 1, "abort": 1, "error": 1}
    buckets = {
        dict(key)["le"]: value for (name, key), value in found.items() if name == "vllm:time_to_first_token_seconds_bucket"
    }
    ours = {
        dict(key)["le"]: value
        for (name, key), value in found.items()
        if name == "millstream:time_to_first_token_seconds_bucket"
    }
    assert buckets == ours and ours["0.75"] == 0 and ours["1.0"] == ours["+Inf"] == 6


def test_what_nobody_told_is_left_out_and_not_shown_as_nothing() -> None:
    assert values(expose([], "m")[0].decode()) == {}


def test_every_end_but_one_that_never_began_has_a_word_in_the_alias() -> None:
    (alias,) = [each for each in ALIASES if each.label]
    assert set(alias.words) | {"rejected"} == {
        "stop", "length", "rejected", "client_gone", "aborted", "deadline", "engine_error", "drain", "slow_reader",
    }  # fmt: skip
    names = [each.exported for each in ALIASES] + [each.exported for each in BY_NAME.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (OPENMETRICS, True),
        (f"{OPENMETRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5", True),
        (f"{OPENMETRICS};q=0.3, text/plain;q=0.5", False),
        (f"text/plain;q=0.5,{OPENMETRICS};version=1.0.0;q=0.75,*/*;q=0.1", True),
        (f"{OPENMETRICS};q=0,*/*", False),
        (f"{OPENMETRICS};q=odd", False),
        ("APPLICATION/OpenMetrics-Text ; Q=1", True),
        ("application/json", False),
    ],
)
def test_the_format_is_the_one_that_the_client_would_rather_have(accept: str, expected: bool) -> None:
    assert prefers_openmetrics(accept) is expected
