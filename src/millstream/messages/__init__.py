"""Every value that crosses a process border: typed msgspec structs, no torch, no behaviour beyond checks.

| shape | from -> to |
| --- | --- |
| `GenerateReqInput` | adapters -> TokenizerManager (same process) |
| `TokenizedGenerateReqInput`, `AbortReq`, `AbortOthersReq`, `PauseReq`, `ResumeReq` | entry -> scheduler |
| `StatsReq`, `FlushReq`, `RadixReq`, `Delivered`, `ReplayReq`, `JourneysReq` | entry -> scheduler |
| `BatchTokenIDOutput`, `Replay`, `StatsReply` (passing through) | scheduler -> detokenizer |
| `BatchStrOutput`, `StatsReply` | detokenizer -> entry |
| `AdmissionOutput`, `ProgressOutput`, `AbortOthersReply`, `AbortNotice` | scheduler -> entry |
| `FlushReply`, `RadixReply`, `JourneysReply` | scheduler -> entry |
| `WorkerReq`, `WorkerReply`, `ResponseReq`, `ResponseReply`, `RequestsReq`, `RequestsReply` | entry -> entry |
| `Ready`, `ChildError`, `Heartbeat`, `Measures`, `SetLogLevel` | child -> supervisor |
| `ServerState`, `SetLogLevel`, `Shutdown` | supervisor -> child |
"""

from millstream.messages.columns import TextColumns, TokenColumns
from millstream.messages.control import (
    AbortNotice,
    AbortOthersReply,
    AbortOthersReq,
    AbortReq,
    AdmissionOutput,
    ChildError,
    EngineInfo,
    FlushReply,
    FlushReq,
    Heartbeat,
    PauseReq,
    ProcessState,
    Progress,
    ProgressOutput,
    Ready,
    Rejection,
    ResumeReq,
    ServerState,
    SetLogLevel,
    Shutdown,
    StatsReply,
    StatsReq,
)
from millstream.messages.details import LogprobParams, Logprobs, RowDetails
from millstream.messages.finish import Abort, FinishReason, Length, Stop
from millstream.messages.generate import GenerateReqInput
from millstream.messages.journey import Journey, JourneysReply, JourneysReq, LiveRequest
from millstream.messages.ledger import Book, LedgerQuery
from millstream.messages.measures import Measures
from millstream.messages.radix import RadixNode, RadixReply, RadixReq
from millstream.messages.replay import Delivered, Received, Replay, ReplayedRequest, ReplayReq
from millstream.messages.requests import RequestRecord, RequestsReply, RequestsReq, TraceContext
from millstream.messages.sampling import SamplingParams
from millstream.messages.text_batch import BatchStrOutput, TextRow
from millstream.messages.timing import Timing, Usage
from millstream.messages.token_batch import BatchTokenIDOutput, DecodeOptions, TokenRow
from millstream.messages.tokenized import TokenizedGenerateReqInput
from millstream.messages.workers import ResponseRecord, ResponseReply, ResponseReq, WorkerReply, WorkerReport, WorkerReq

ToScheduler = (
    TokenizedGenerateReqInput
    | AbortReq
    | AbortOthersReq
    | PauseReq
    | ResumeReq
    | StatsReq
    | FlushReq
    | RadixReq
    | Delivered
    | ReplayReq
    | JourneysReq
)
ToDetokenizer = BatchTokenIDOutput | Replay | StatsReply
ToEntry = (
    BatchStrOutput
    | AdmissionOutput
    | ProgressOutput
    | AbortOthersReply
    | AbortNotice
    | FlushReply
    | RadixReply
    | JourneysReply
    | StatsReply
    | WorkerReq
    | WorkerReply
    | ResponseReq
    | ResponseReply
    | RequestsReq
    | RequestsReply
)
ToSupervisor = Ready | ChildError | Heartbeat | Measures | SetLogLevel
FromSupervisor = ServerState | SetLogLevel | Shutdown

__all__ = [
    "Abort",
    "AbortNotice",
    "AbortOthersReply",
    "AbortOthersReq",
    "AbortReq",
    "AdmissionOutput",
    "BatchStrOutput",
    "BatchTokenIDOutput",
    "Book",
    "ChildError",
    "DecodeOptions",
    "Delivered",
    "EngineInfo",
    "FlushReply",
    "FlushReq",
    "FinishReason",
    "FromSupervisor",
    "GenerateReqInput",
    "Heartbeat",
    "Journey",
    "JourneysReply",
    "JourneysReq",
    "LedgerQuery",
    "Length",
    "LogprobParams",
    "LiveRequest",
    "Logprobs",
    "Measures",
    "PauseReq",
    "ProcessState",
    "Progress",
    "ProgressOutput",
    "RadixNode",
    "RadixReply",
    "RadixReq",
    "Ready",
    "Received",
    "Rejection",
    "Replay",
    "ReplayReq",
    "ReplayedRequest",
    "RequestRecord",
    "RequestsReply",
    "RequestsReq",
    "ResponseRecord",
    "ResponseReply",
    "ResponseReq",
    "ResumeReq",
    "RowDetails",
    "SamplingParams",
    "ServerState",
    "SetLogLevel",
    "Shutdown",
    "StatsReply",
    "StatsReq",
    "Stop",
    "TextColumns",
    "TextRow",
    "Timing",
    "ToDetokenizer",
    "ToEntry",
    "ToScheduler",
    "ToSupervisor",
    "TokenColumns",
    "TokenRow",
    "TokenizedGenerateReqInput",
    "TraceContext",
    "Usage",
    "WorkerReply",
    "WorkerReport",
    "WorkerReq",
]
