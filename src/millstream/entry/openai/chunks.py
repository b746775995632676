"""The JSON of OpenAI answers, whole and in chunks. Pure: facts in, bytes out; the fixed part of a chunk is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from millstream.entry.fields import Json
from millstream.entry.sse import event
from millstream.errors import InvariantError
from millstream.messages import FinishReason, Length, Stop

_encode = msgspec.json.encode


class Shape(NamedTuple):
    """What sets chat and completions apart on the wire."""

    id_prefix: str
    object: str
    chunk_object: str
    opening: Json | None  # members of each choice's first chunk; None: no such chunk
    closing: Json  # members of each choice's last chunk
    text_before: bytes  # around the JSON string of a text delta
    text_after: bytes


CHAT_SHAPE = Shape(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    opening={"delta": {"role": "assistant", "content": ""}},
    closing={"delta": {}},
    text_before=b'"delta":{"content":',
    text_after=b"}",
)
COMPLETION_SHAPE = Shape(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    opening=None,
    closing={"text": ""},
    text_before=b'"text":',
    text_after=b"",
)


def finish_members(finish: FinishReason) -> Json:
    """`finish_reason` in OpenAI's words, and SGLang's `matched_stop`: the stop string, the token id, or null.

    OpenAI has no word for one choice of several that its client aborted; `abort` is SGLang's and vLLM's.
    """
    if isinstance(finish, Stop):
        return {"finish_reason": "stop", "matched_stop": finish.matched}
    if isinstance(finish, Length):
        return {"finish_reason": "length", "matched_stop": None}
    if finish.cause == "aborted":
        return {"finish_reason": "abort", "matched_stop": None}
    raise InvariantError("a request that failed has no finish_reason")


class ChunkWriter:
    """Makes the events of one stream. `head`: members that all chunks have.

    `usage_null`: chunks without usage say so, as OpenAI's do when usage was asked for.
    """

    def __init__(self, *, shape: Shape, head: Json, choices: int, usage_null: bool) -> None:
        self._shape = shape
        self._head = head
        self._usage_null: Json = {"usage": None} if usage_null else {}
        before = _encode(self._head)[:-1]
        self._text_heads = [
            event(before)[:-2] + b',"choices":[{"index":%d,' % index + shape.text_before for index in range(choices)
        ]
        self._text_middle = shape.text_after + b',"logprobs":'
        self._no_finish = b',"finish_reason":null'
        self._text_tail = b'}],"usage":null}\n\n' if usage_null else b"}]}\n\n"
        self._text_end = self._text_middle + b"null" + self._no_finish + self._text_tail

    def opening(self, texts: Sequence[str], prompt_token_ids: Any = None) -> bytes:
        """The first chunk of each choice, with a text that is there already; the very first carries the prompt's ids where they
        were asked for. In completions only such chunks that say something.
        """
        extra: Json = {} if prompt_token_ids is None else {"prompt_token_ids": prompt_token_ids}
        chunks = []
        for index, text in enumerate(texts):
            members = self._shape.opening or {"text": text}
            if text or extra or self._shape.opening is not None:
                chunks.append(self._chunk([{"index": index, **members, "logprobs": None, "finish_reason": None}], extra))
            extra = {}
        return b"".join(chunks)

    def around_text(self, index: int) -> tuple[bytes, bytes]:
        """What `text` puts before and after the JSON string of a choice's text."""
        return self._text_heads[index], self._text_end

    def text(
        self,
        index: int,
        text: str,
        *,
        logprobs: Json | None = None,
        token_ids: list[int] | None = None,
        usage: Json | None = None,
    ) -> bytes:
        """A chunk with new text of one choice."""
        logprobs_json = b"null" if logprobs is None else _encode(logprobs)
        ids = b"" if token_ids is None else b',"token_ids":' + _encode(token_ids)
        tail = self._text_tail if usage is None else b'}],"usage":' + _encode(usage) + b"}\n\n"
        return b"".join((self._text_heads[index], _encode(text), self._text_middle, logprobs_json, self._no_finish, ids, tail))

    def finish(self, index: int, finish: FinishReason, usage: Json | None = None) -> bytes:
        """The last chunk of one choice."""
        choice = {"index": index, **self._shape.closing, "logprobs": None, **finish_members(finish)}
        return self._chunk([choice], {} if usage is None else {"usage": usage})

    def usage(self, usage: Json) -> bytes:
        """The one chunk without choices: the usage of the whole call."""
        return self._chunk([], {"usage": usage})

    def _chunk(self, choices: list[Json], extra: Json) -> bytes:
        return event(_encode({**self._head, "choices": choices, **self._usage_null, **extra}))
