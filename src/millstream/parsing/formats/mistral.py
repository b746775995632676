"""Mistral: `[TOOL_CALLS]` before a list of objects; of late before each name, with the arguments behind `[ARGS]`."""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import ID, SPACE, Calls, JsonObject, Maybe, NamedJson
from millstream.parsing.reader import Reader, Reading
from millstream.parsing.stage import Example, ToolFormat


class MistralCalls:
    """A list where a bracket or a brace comes next, else a name."""

    _old = JsonObject(in_list=True)
    _new = NamedJson(after=(SPACE, Maybe("[CALL_ID]", (ID,)), SPACE, Maybe("[ARGS]"), SPACE))

    def read(self, reader: Reader, calls: Calls) -> Reading[None]:
        """See `Form`."""
        yield from reader.space(calls.draft.markup)
        is_old = (yield from reader.peek()) in "[{"
        yield from (self._old if is_old else self._new).read(reader, calls)


MISTRAL = ToolFormat(
    name="mistral",
    form=MistralCalls(),
    opens=("[TOOL_CALLS]",),
    template_marks=("[TOOL_CALLS]",),
    written=(
        Writing(begin="[TOOL_CALLS]", after_name="[ARGS]", end="", needs="[ARGS]"),
        Writing(
            opening="[TOOL_CALLS] [",
            begin='{"name": "',
            after_name='", "arguments": ',
            end="}",
            between=", ",
            closing="]",
            in_string=True,
        ),
    ),
    examples=(
        Example(
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Nîmes"}}, {"name": "ping", "arguments": {}}]',
            calls=(("get_weather", '{"city": "Nîmes"}'), ("ping", "{}")),
        ),
        Example(
            'Hm.[TOOL_CALLS]get_weather[ARGS]{"city": "A"}[TOOL_CALLS]ping[ARGS]{}',
            "Hm.",
            (("get_weather", '{"city": "A"}'), ("ping", "{}")),
        ),
        Example('[TOOL_CALLS]ping[CALL_ID]Xy3[ARGS]{"a": 1}', calls=(("ping", '{"a": 1}'),), ids=("Xy3",)),
        Example('[TOOL_CALLS]ping{"a": 1}', calls=(("ping", '{"a": 1}'),)),
        Example("[TOOL_CALLS] are what they are", "[TOOL_CALLS] are what they are"),
    ),
)
