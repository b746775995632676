"""Every value that crosses a process border: typed msgspec structs, no torch, no behaviour beyond checks.

| shape | from -> to |
| --- | --- |
| `GenerateReqInput` | adapters -> TokenizerManager (same process) |
| `TokenizedGenerateReqInput`, `AbortReq`, `PauseReq`, `ResumeReq`, `StatsReq` | entry -> scheduler |
| `BatchTokenIDOutput`, `StatsReply` (passing through) | scheduler -> detokenizer |
| `BatchStrOutput`, `StatsReply` | detokenizer -> entry |
| `AdmissionOutput`, `ProgressOutput` | scheduler -> entry |
| `Ready`, `ChildError` / `ServerState`, `Shutdown` | child -> supervisor / supervisor -> child |
"""

from millstream.messages.columns import TextColumns, TokenColumns
from millstream.messages.control import (
    AbortReq,
    AdmissionOutput,
    ChildError,
    EngineInfo,
    PauseReq,
    ProcessState,
    Progress,
    ProgressOutput,
    Ready,
    Rejection,
    ResumeReq,
    ServerState,
    Shutdown,
    StatsReply,
    StatsReq,
)
from millstream.messages.finish import Abort, FinishReason, Length, Stop
from millstream.messages.generate import GenerateReqInput
from millstream.messages.ledger import Book, LedgerQuery
from millstream.messages.sampling import SamplingParams
from millstream.messages.text_batch import BatchStrOutput, TextRow
from millstream.messages.timing import Timing, Usage
from millstream.messages.token_batch import BatchTokenIDOutput, DecodeOptions, TokenRow
from millstream.messages.tokenized import TokenizedGenerateReqInput

ToScheduler = TokenizedGenerateReqInput | AbortReq | PauseReq | ResumeReq | StatsReq
ToDetokenizer = BatchTokenIDOutput | StatsReply
ToEntry = BatchStrOutput | AdmissionOutput | ProgressOutput | StatsReply
ToSupervisor = Ready | ChildError
FromSupervisor = ServerState | Shutdown

__all__ = [
    "Abort",
    "AbortReq",
    "AdmissionOutput",
    "BatchStrOutput",
    "BatchTokenIDOutput",
    "Book",
    "ChildError",
    "DecodeOptions",
    "EngineInfo",
    "FinishReason",
    "FromSupervisor",
    "GenerateReqInput",
    "LedgerQuery",
    "Length",
    "PauseReq",
    "ProcessState",
    "Progress",
    "ProgressOutput",
    "Ready",
    "Rejection",
    "ResumeReq",
    "SamplingParams",
    "ServerState",
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
    "Usage",
]
