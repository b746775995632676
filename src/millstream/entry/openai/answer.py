"""From protocol-free requests to an OpenAI answer, streamed or whole: one pipeline, the same deltas, joined or not.

Called by the chat and completions adapters. Status and headers are sent after admission, never before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from millstream.entry.failure import Failure, failure_of_abort
from millstream.entry.fields import Json
from millstream.entry.generation import Generation, Origin
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.best import best_of
from millstream.entry.openai.choice_output import ChoiceOutput, OutputOptions
from millstream.entry.openai.chunks import ChunkWriter, Shape, finish_members
from millstream.entry.openai.fingerprint import fingerprint
from millstream.entry.openai.logprob_options import LogprobOptions
from millstream.entry.openai.protocol import GenerationFields, StreamOptions
from millstream.entry.openai.speech import Speech
from millstream.entry.openai.tally import Tally
from millstream.entry.release import admitted
from millstream.entry.service import Service
from millstream.entry.sse import DONE, error_event
from millstream.entry.stream import stream_answer
from millstream.entry.tokenizer_manager import TokenizerManager
from millstream.entry.turn import Answer
from millstream.entry.whole import Whole, collect, num_values
from millstream.messages import Abort, FinishReason, GenerateReqInput, TextRow
from millstream.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Call:
    """One OpenAI call, understood. `requests` holds `width` neighbours for each prompt, `fields.n` unless told otherwise."""

    rid: str
    fields: GenerationFields
    requests: list[GenerateReqInput]
    origin: Origin
    shape: Shape
    logprobs: LogprobOptions = LogprobOptions()
    said: Answer | None = None  # how the text of a chat is taken apart; None: it is content
    shows_reasoning: bool = True
    width: int = 0
    echo: Sequence[str | list[int]] | None = None  # prompts that stand before their answers
    several_prompts: bool = False

    @property
    def response_id(self) -> str:
        """The id in the answer and in every chunk of it."""
        return self.shape.id_prefix + self.rid

    @property
    def choices_each(self) -> int:
        """Choices made for each prompt."""
        return self.width or self.fields.n

    @property
    def is_taken_apart(self) -> bool:
        """Whether the text is more than content."""
        return self.said is not None and (self.said.reading is not None or self.said.marks is not None)

    def speech(self, tokenizer: Tokenizer) -> Speech | None:
        """What takes one choice apart; None where all of it is content."""
        if self.said is None or not self.is_taken_apart:
            return None
        return Speech(self.said, tokenizer.single, shows_reasoning=self.shows_reasoning)

    def head(self, kind: str, service: Service) -> Json:
        """The members that the answer and every chunk of it begin with."""
        name = self.origin.model
        head = {"id": self.response_id, "object": kind, "created": int(time.time()), "model": name}
        head["system_fingerprint"] = fingerprint(service.config, service.manager.engine, name)
        return head if self.fields.service_tier is None else {**head, "service_tier": "default"}


async def answer(exchange: Exchange, service: Service, call: Call) -> None:
    """Run `call` and answer it.

    Raises:
        MillstreamError, RequestFailed: before anything was sent.
    """
    manager = service.manager
    head = call.head(call.shape.chunk_object if call.fields.stream else call.shape.object, service)
    async with admitted(manager, call.rid, call.requests, call.origin) as generation:
        outputs = await _choice_outputs(manager, call, generation)
        if call.fields.stream:
            await stream_answer(exchange, service, generation, _ChunkStream(call, generation, outputs, head, manager.tokenizer))
        else:
            made = await collect(generation, _Ends(call).failure)
            speeches = [call.speech(manager.tokenizer) for _ in made]
            work = partial(_body, call, Tally(generation, call.choices_each), outputs, head, made, speeches)
            size = num_values(made) + (sum(len(choice.text) for choice in made) if call.is_taken_apart else 0)
            await exchange.send_json(await manager.prompts.off_loop(size, work))
            generation.stamp_written(service.clock(), last=True)


async def _choice_outputs(manager: TokenizerManager, call: Call, generation: Generation) -> list[ChoiceOutput]:
    """What is seen of each choice, with the text of prompts that are echoed; long ids are decoded off the event loop."""
    tokenizer = manager.tokenizer
    options = OutputOptions(
        logprobs=call.logprobs,
        is_chat=call.shape.opening is not None,
        as_ids=call.fields.return_tokens_as_token_ids,
        tokenizer=tokenizer,
    )
    skip = call.fields.skip_special_tokens
    echoes: list[str | None] = [None] * len(call.requests)
    if call.echo is not None:
        size = sum(len(prompt) for prompt in call.echo if isinstance(prompt, list))
        decode = partial(_texts, call.echo, lambda ids: tokenizer.decode(ids, skip_special_tokens=skip))
        texts = await manager.prompts.off_loop(size, decode)
        echoes = [text for text in texts for _ in range(call.choices_each)]
    return [
        ChoiceOutput(options, state.obj.sampling, state.input_ids, echo)
        for state, echo in zip(generation.states, echoes, strict=True)
    ]


def _texts(prompts: Sequence[str | list[int]], decode: Callable[[list[int]], str]) -> list[str]:
    return [prompt if isinstance(prompt, str) else decode(prompt) for prompt in prompts]


class _Ends:
    """Says which ends of a call's choices are failures of the call: all but success, and but the abort of some choices.

    Asked once for each choice. A client that aborts one choice of several by its own rid has asked for nothing else to end.
    """

    def __init__(self, call: Call) -> None:
        self._several = len(call.requests) > 1
        self._num_wanted = len(call.requests)

    def failure(self, finish: FinishReason) -> Failure | None:
        """What the end of one choice means to the call, where it is a failure."""
        if not isinstance(finish, Abort):
            return None
        if finish.cause == "aborted":
            self._num_wanted -= 1
            if self._num_wanted:
                return None
        return failure_of_abort(finish)

    def is_shown(self, finish: FinishReason) -> bool:
        """Whether the choice has a `finish_reason`."""
        return not isinstance(finish, Abort) or (self._several and finish.cause == "aborted")


def _body(
    call: Call, tally: Tally, outputs: list[ChoiceOutput], head: Json, made: list[Whole], speeches: list[Speech | None]
) -> Json:
    shown = best_of(made, width=call.choices_each, n=call.fields.n)
    body: Json = {
        **head,
        "choices": [_choice(call, place, made[index], outputs[index], speeches[index]) for place, index in enumerate(shown)],
        "usage": tally.usage(sum(speech.reasoning_tokens for speech in speeches if speech is not None)),
    }
    if call.fields.return_token_ids:
        body["prompt_token_ids"] = tally.prompt_token_ids(several=call.several_prompts)
    if call.shape.opening is not None and call.logprobs.prompt is not None:  # vLLM has it there in chats
        body["prompt_logprobs"] = outputs[0].prompt_logprobs(made[0].details, made[0].finish)
    return body


def _choice(call: Call, index: int, made: Whole, output: ChoiceOutput, speech: Speech | None) -> Json:
    part = output.take(made.text, made.token_ids, made.details, made.finish)
    chat = call.shape.opening is not None
    content: Json = {"message": {"role": "assistant", "content": part.text}} if chat else {"text": part.text}
    in_calls = False
    if speech is not None:
        speech.count(made.token_ids)
        content = {"message": {"role": "assistant", **speech.message(part.text)}}
        in_calls = speech.ends_in_calls
    end = finish_members(made.finish, in_calls=in_calls)
    choice = {"index": index, **content, "logprobs": output.logprobs(part.listed), **end}
    if call.fields.return_token_ids:
        choice["token_ids"] = made.token_ids
    if not chat and call.logprobs.prompt is not None:
        choice["prompt_logprobs"] = output.prompt_logprobs(made.details, made.finish)
    return choice


class _ChunkStream:
    """The `StreamForm` of both OpenAI routes: opening chunk a choice, text as it comes, last chunk a choice, usage."""

    def __init__(
        self, call: Call, generation: Generation, outputs: list[ChoiceOutput], head: Json, tokenizer: Tokenizer
    ) -> None:
        options = call.fields.stream_options or StreamOptions()
        self._call = call
        self._outputs = outputs
        self._ends = _Ends(call)
        self._speeches = [speech for _ in outputs if (speech := call.speech(tokenizer)) is not None]
        self._ids = call.fields.return_token_ids
        self._include_usage = bool(options.include_usage)
        self._continuous = bool(options.continuous_usage_stats)
        self._tally = Tally(generation, call.choices_each)
        self._chunks = ChunkWriter(shape=call.shape, head=head, choices=len(call.requests), usage_null=self._include_usage)

    def opening(self) -> bytes:
        """The first chunk of each choice."""
        prompts = self._tally.prompt_token_ids(several=self._call.several_prompts) if self._ids else None
        return self._chunks.opening([output.opening() for output in self._outputs], prompts)

    def row(self, index: int, row: TextRow) -> bytes:
        """A chunk for the text, and one for the end."""
        if self._speeches:
            self._speeches[index].count(row.token_ids)
        usage = self._usage() if self._continuous else None
        ids = row.token_ids if self._ids else None
        output = self._outputs[index]
        part = output.take(row.text, row.token_ids, row.details, row.finish)
        logprobs = output.logprobs(part.listed) if part.listed else None
        chunk, in_calls = b"", False
        if self._speeches:
            speech = self._speeches[index]
            deltas = speech.deltas(part.text, is_last=row.finish is not None)
            if not deltas and (ids or logprobs):
                deltas = [{"content": ""}]
            for delta in deltas:
                chunk += self._chunks.delta(index, delta, logprobs=logprobs, token_ids=ids, usage=usage)
                logprobs = ids = None  # the first of them has these
            in_calls = speech.ends_in_calls
        elif part.text or ids or logprobs:
            chunk = self._chunks.text(index, part.text, logprobs=logprobs, token_ids=ids, usage=usage)
        if row.finish is None or not self._ends.is_shown(row.finish):
            return chunk
        return chunk + self._chunks.finish(index, row.finish, usage, in_calls=in_calls)

    def text_event(self, index: int) -> tuple[bytes, bytes] | None:
        """A chunk's fixed parts, where it carries neither ids nor log probabilities nor usage."""
        is_plain = not (self._ids or self._continuous or self._speeches or self._call.logprobs.output is not None)
        return self._chunks.around_text(index) if is_plain else None

    def failure(self, finish: FinishReason) -> Failure | None:
        """See `_Ends`."""
        return self._ends.failure(finish)

    def closing(self) -> bytes:
        """The usage chunk, where it was asked for, and `[DONE]`."""
        return (self._chunks.usage(self._usage()) if self._include_usage else b"") + DONE

    def _usage(self) -> Json:
        return self._tally.usage(sum(speech.reasoning_tokens for speech in self._speeches))

    def broken(self, failure: Failure) -> bytes:
        """An error event."""
        return error_event(failure)
