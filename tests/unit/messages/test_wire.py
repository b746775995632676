"""Every message survives the wire unchanged, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.messages import (
    Abort,
    AbortNotice,
    AbortOthersReply,
    AbortOthersReq,
    AbortReq,
    AdmissionOutput,
    BatchStrOutput,
    BatchTokenIDOutput,
    Book,
    ChildError,
    DecodeOptions,
    Delivered,
    EngineInfo,
    FromSupervisor,
    Heartbeat,
    JourneysReply,
    JourneysReq,
    LedgerQuery,
    Length,
    LiveRequest,
    Measures,
    PauseReq,
    ProcessState,
    Progress,
    ProgressOutput,
    RadixNode,
    RadixReply,
    RadixReq,
    Ready,
    Received,
    Rejection,
    Replay,
    ReplayedRequest,
    ReplayReq,
    RequestRecord,
    RequestsReply,
    RequestsReq,
    ResponseRecord,
    ResponseReply,
    ResponseReq,
    ResumeReq,
    SamplingParams,
    ServerState,
    Shutdown,
    StatsReply,
    StatsReq,
    Stop,
    TextColumns,
    TextRow,
    Timing,
    ToDetokenizer,
    ToEntry,
    TokenColumns,
    TokenizedGenerateReqInput,
    TokenRow,
    ToScheduler,
    ToSupervisor,
    TraceContext,
    Usage,
    WorkerReply,
    WorkerReport,
    WorkerReq,
)
from millstream.messages.columns import pack_ids, pack_slots
from millstream.messages.measures import Distribution, Sample

STATS = StatsReply(
    id=3,
    scheduler_requests=2,
    waiting=1,
    running=1,
    pages_total=8,
    pages_free=5,
    pages_cached=2,
    steps=9,
    retractions=1,
    draft_tokens=12,
    accepted_draft_tokens=7,
    forced_tokens=3,
)
MEASURES = Measures(
    "entry", 7, [Sample("requests", ("stop", "chat", "m"), 2)], [Distribution("queue_seconds", (), [1, 0], 0.5)]
)
ENGINE = EngineInfo(
    vocab_size=10,
    context_length=64,
    eos_token_ids=[2],
    num_pages=4,
    page_size=16,
    max_running_requests=2,
    executor="scripted",
)
USAGE = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4, verify_steps=1)
REQUEST = TokenizedGenerateReqInput(
    rid="r",
    input_ids=[1, 2, 49151],
    sampling=SamplingParams(stop=("END",), logit_bias={3: -100.0}, seed=2**64 - 1, temperature=0.0),
    max_new_tokens=7,
    cache_namespace="salt",
    timing=Timing(received=1.5),
)
TOKEN_ROWS = BatchTokenIDOutput(
    rows=[
        TokenRow(rid="a", token_ids=[1], usage=USAGE),
        TokenRow(rid="b", token_ids=[], usage=USAGE, held_back=3, finish=Stop("END"), timing=Timing(decoded=2.0)),
        TokenRow(rid="c", token_ids=[2], usage=USAGE, finish=Stop(2)),
        TokenRow(rid="d", token_ids=[2], usage=USAGE, finish=Length(4)),
        TokenRow(rid="e", token_ids=[], usage=USAGE, finish=Abort("engine_error", "NaN", 500)),
    ],
    opened=[DecodeOptions(rid="a", slot=7, skip_special_tokens=False, no_stop_trim=True)],
    columns=[TokenColumns(pack_slots([7, 2**32 - 1]), pack_ids([5, 6, 7, 8]), 2)],
)


RECORD = RequestRecord(
    rid="c-1",
    call="c",
    api="chat",
    model="m",
    state="ended",
    cause="stop",
    received_at=1.5,
    until=2.5,
    timing=Timing(received=1.0),
    usage=Usage(3, 4, 1),
    request_id="req_1",
    owner="ab",
    trace=TraceContext("0" * 31 + "1", "0" * 15 + "2"),
)


@pytest.mark.parametrize(
    ("message", "types"),
    [
        pytest.param(REQUEST, ToScheduler, id="request"),
        pytest.param(AbortReq(rid="r", cause="drain"), ToScheduler, id="abort"),
        pytest.param(PauseReq(rid="r"), ToScheduler, id="pause"),
        pytest.param(ResumeReq(rid="r"), ToScheduler, id="resume"),
        pytest.param(StatsReq(id=3), ToScheduler, id="stats-request"),
        pytest.param(AbortOthersReq(id=3, entry=1, rids=["a"], prefix="b"), ToScheduler, id="abort-others"),
        pytest.param(AbortOthersReply(id=3, rids=["a"]), ToEntry, id="abort-others-reply"),
        pytest.param(AbortNotice([3, 4], "aborted"), ToEntry, id="abort-notice"),
        pytest.param(Delivered(["a", "b"], entry=2), ToScheduler, id="delivered"),
        pytest.param(ReplayReq([Received("a", 3, 12)], 4711, entry=2), ToScheduler, id="replay-request"),
        pytest.param(
            Replay([ReplayedRequest(DecodeOptions(slot=7, rid="a", entry=2), row, 3, 12) for row in TOKEN_ROWS.rows]),
            ToDetokenizer,
            id="replay",
        ),
        pytest.param(RadixReq(3, 1, 100), ToScheduler, id="radix-request"),
        pytest.param(RadixReply(3, [RadixNode(-1, 0, [5, 6], 16, 1, 2, 7, 0)], 4, 3, 1), ToEntry, id="radix-reply"),
        pytest.param(Heartbeat(progress=2**40, is_busy=True), ToSupervisor, id="heartbeat"),
        pytest.param(MEASURES, ToSupervisor, id="measures"),
        pytest.param(TOKEN_ROWS, ToDetokenizer, id="token-rows"),
        pytest.param(STATS, ToDetokenizer, id="stats-to-detokenizer"),
        pytest.param(
            BatchStrOutput(
                [TextRow(rid="a", slot=7, text="é😀\u2028", token_ids=[1], usage=USAGE, finish=Stop(None))],
                [TextColumns(pack_slots([7]), pack_ids([5]), 1, ["é"])],
            ),
            ToEntry,
            id="text-rows",
        ),
        pytest.param(STATS, ToEntry, id="stats-to-entry"),
        pytest.param(
            AdmissionOutput(accepted=[3], rejected=[Rejection("b", 4, "full", 503, "overloaded_error", retry_after_s=1)]),
            ToEntry,
            id="admission",
        ),
        pytest.param(WorkerReq(3, 1, LedgerQuery("r")), ToEntry, id="worker-request"),
        pytest.param(
            WorkerReply(3, WorkerReport(4, 5, 6, 7, Book("entry-3", [], 0, {"state": 1}, {}))), ToEntry, id="worker-reply"
        ),
        pytest.param(ResponseReq(3, 1, "resp_0", "a1", "cancel"), ToEntry, id="response-request"),
        pytest.param(ResponseReply(3, ResponseRecord("a1", "completed", b"{}", b"[]")), ToEntry, id="response-reply"),
        pytest.param(ResponseReply(4, None), ToEntry, id="no-response-reply"),
        pytest.param(RequestsReq(5, entry=3, owner="ab", name="r"), ToEntry, id="requests-req"),
        pytest.param(RequestsReply(5, [RECORD]), ToEntry, id="requests-reply"),
        pytest.param(JourneysReq(6, entry=1), ToScheduler, id="journeys-req"),
        pytest.param(
            JourneysReply(6, [LiveRequest("r", "paused", Timing(journey=b"1"), Usage(1, 2))]), ToEntry, id="journeys-reply"
        ),
        pytest.param(ProgressOutput([Progress("a", place=3), Progress("b", done=5, total=9)]), ToEntry, id="progress"),
        pytest.param(Ready(process="scheduler", engine=ENGINE), ToSupervisor, id="ready"),
        pytest.param(ChildError(process="entry", message="no port", hint="other port"), ToSupervisor, id="child-error"),
        pytest.param(
            ServerState(processes={"entry-0": ProcessState(pid=7, state="FAILED")}, engine=ENGINE, measures=[MEASURES]),
            FromSupervisor,
            id="state",
        ),
        pytest.param(Shutdown(drain_s=1.0), FromSupervisor, id="shutdown"),
    ],
)
def test_a_message_survives_the_wire(message: Any, types: Any) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=types)
    assert decoded == message
    assert type(decoded) is type(message)


def test_a_message_of_another_hop_is_refused() -> None:
    frame = msgspec.msgpack.encode(TOKEN_ROWS)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(frame, type=ToScheduler)
