"""Llama 3 and 4: a bare object, after `<|python_tag|>` or as all of the answer; or a list of calls as Python writes them.

Llama 4 has `<|python_start|>` and `<|python_end|>`, around the calls or before them.
"""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import JsonObject, Maybe, PythonCalls
from millstream.parsing.stage import Example, ToolFormat

_BEGINS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
_END = "<|python_end|>"

LLAMA3 = ToolFormat(
    name="llama3",
    aliases=("llama3_json", "llama4_json"),
    form=JsonObject(separator=";", in_list=True, before=(Maybe(_END),), close=_END),
    opens=_BEGINS,
    bare=JsonObject(separator=";", in_list=True, is_strict=True),
    bare_starts="{[",
    template_marks=('{"name": function name, "parameters":',),
    written=(Writing(begin='{"name": "', after_name='", "parameters": ', end="}", between="; ", in_string=True),),
    examples=(
        Example('{"name": "get_weather", "parameters": {"city": "Bern"}}', calls=(("get_weather", '{"city": "Bern"}'),)),
        Example(
            'See.<|python_tag|>{"name": "ping", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "A;B"}}',
            "See.",
            (("ping", "{}"), ("get_weather", '{"city": "A;B"}')),
        ),
        Example(
            '[{"name": "ping", "parameters": {"code": "if (a) { b(\\"}\\") } \\\\"}}]',
            calls=(("ping", '{"code": "if (a) { b(\\"}\\") } \\\\"}'),),
        ),
        Example(
            '<|python_start|><|python_end|>{"name": "ping", "parameters": {}}{"name": "ping", "parameters": {"x": "A"}}',
            calls=(("ping", "{}"), ("ping", '{"x": "A"}')),
        ),
        Example('<|python_start|>{"name": "ping", "parameters": {}}<|python_end|>', calls=(("ping", "{}"),)),
        Example(
            '[{"name": "ping", "arguments": {}, "id": "a"}, {"name": "ping", "arguments": {"x": 1}, "id": "b"}]',
            calls=(("ping", "{}"), ("ping", '{"x": 1}')),
        ),
        Example('{"city": "Bern", "name": "ping"}', '{"city": "Bern", "name": "ping"}'),
        Example('So: {"name": "ping", "parameters": {}}', 'So: {"name": "ping", "parameters": {}}'),
    ),
)

PYTHONIC = ToolFormat(
    name="pythonic",
    aliases=("llama4_pythonic", "llama4"),
    form=PythonCalls(before=(Maybe(_END),), close=_END),
    opens=_BEGINS,
    bare=PythonCalls(),
    bare_starts="[",
    template_marks=("[func_name1(params_name1=params_value1",),
    written=(Writing(opening="[", begin="", after_name="(", end=")", between=", ", closing="]", style="python"),),
    examples=(
        Example(
            "[get_weather(city='Bern', days=2, hourly=True), ping()]",
            calls=(("get_weather", '{"city": "Bern", "days": 2, "hourly": true}'), ("ping", "{}")),
        ),
        Example(
            "<|python_start|>[ping(a=(1, -2.5), b={'k': None}, c=\"it's \\x41\\n\", d='say \"x\"')]",
            calls=(("ping", '{"a": [1, -2.5], "b": {"k": null}, "c": "it\'s A\\n", "d": "say \\"x\\""}'),),
        ),
        Example("<|python_start|>[ping(a=[1, 2,], b=(), )]<|python_end|>", calls=(("ping", '{"a": [1, 2], "b": []}'),)),
        Example("[1] is a note, [link](there) is none", "[1] is a note, [link](there) is none"),
    ),
)
