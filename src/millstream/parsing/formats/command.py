"""Cohere's Command R7B and A: a list of objects that say `tool_name`; a plan in tags, and the answer in tags."""

from millstream.parsing.forms import JsonObject
from millstream.parsing.reasoning import ReasoningFormat, Thought
from millstream.parsing.stage import Example, ToolFormat

_BEGIN, _END = "<|START_ACTION|>", "<|END_ACTION|>"

COMMAND_TOOLS = ToolFormat(
    name="command_r7b",
    aliases=("cohere", "command_a"),
    form=JsonObject(
        in_list=True, close=_END, name_key="tool_name", arguments_keys=("parameters",), ignored_keys=("tool_call_id",)
    ),
    opens=(_BEGIN,),
    template_marks=("<|START_ACTION|>", "tool_name"),
    examples=(
        Example(
            f'{_BEGIN}[\n    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {{"city": "Bern"}}}},\n'
            f'    {{"tool_call_id": "1", "tool_name": "ping", "parameters": {{}}}}\n]{_END}',
            calls=(("get_weather", '{"city": "Bern"}'), ("ping", "{}")),
        ),
        Example(f'{_BEGIN}[{{"name": "ping"}}]{_END}', f'{_BEGIN}[{{"name": "ping"}}]{_END}'),
    ),
)

COMMAND = ReasoningFormat(
    name="command_r7b",
    aliases=("cohere", "command_a"),
    begin="<|START_THINKING|>",
    end="<|END_THINKING|>",
    answer_tags=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    is_special=True,
    template_marks=("<|START_THINKING|>", "<|END_THINKING|>"),
    examples=(
        Thought("<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Hm.", "Yes."),
        Thought("<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "", "Yes."),
        Thought("Yes.<|END_RESPONSE|>\n", "", "Yes."),
        Thought("<|START_THINKING|>Hm.<|END_THINKING|>Yes. <|START_RESPONSE|>", "Hm.", "Yes. <|START_RESPONSE|>"),
    ),
)
