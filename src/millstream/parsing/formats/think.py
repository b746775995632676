"""Reasoning between a pair of tags: DeepSeek-R1, Qwen 3, GLM, Kimi, Magistral, Granite, Hunyuan and most others."""

from millstream.parsing.reasoning import ReasoningFormat, Thought

_EXAMPLES = (
    Thought("<think>\nTwo and two.\n</think>\n\nFour.", "Two and two.", "Four."),
    Thought("<think>\n\n</think>\n\nParis", "", "Paris"),
    Thought("<think>on and on", "on and on", ""),
    Thought("<think>a</think>", "a", ""),
    Thought("<think>a <think> b</think>c", "a <think> b", "c"),
    Thought("<think>a</think> <think>b</think>c", "ab", "c"),
    Thought("<think>a</think>The tag <think> opens.</think>", "a", "The tag <think> opens.</think>"),
    Thought("  Paris <think>x</think>", "", "  Paris <think>x</think>"),
    Thought("Let me see 2+2</think>4", "Let me see 2+2", "4", is_open=True),
    Thought("\n<think>\nagain</think>4", "again", "4", is_open=True),
    Thought("<thi", "", "<thi"),
)

QWEN3 = ReasoningFormat(
    name="qwen3",
    aliases=("glm45", "kimi_k2", "deepseek-v3", "nemotron", "lfm2", "phi4", "think"),
    begin="<think>",
    end="</think>",
    template_marks=("</think>",),
    examples=_EXAMPLES,
)

DEEPSEEK_R1 = ReasoningFormat(
    name="deepseek-r1",
    aliases=("deepseek_r1", "qwen3-thinking", "step3", "minimax", "minimax-m2"),
    begin="<think>",
    end="</think>",
    is_open=True,
    examples=_EXAMPLES,
)

GRANITE = ReasoningFormat(
    name="granite",
    aliases=("ernie45",),
    begin="<think>",
    end="</think>",
    answer_tags=("<response>", "</response>"),
    template_marks=("<think>", "<response>"),
    examples=(
        *_EXAMPLES,
        Thought("<think>Hm.</think>\n<response>\nYes.\n</response>\n", "Hm.", "Yes."),
        Thought("<think>Hm.</think><response>a </response> b", "Hm.", "a </response> b"),
        Thought("<think>Hm.</think><response>a \n", "Hm.", "a \n"),
        Thought("<response>Yes.</response>", "", "Yes."),
        Thought("It is <response>.</response>.", "", "It is <response>.</response>."),
    ),
)

HUNYUAN = ReasoningFormat(
    name="hunyuan",
    aliases=("hunyuan_a13b",),
    begin="<think>",
    end="</think>",
    answer_tags=("<answer>", "</answer>"),
    template_marks=("<think>", "<answer>"),
    examples=(Thought("<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "Hm.", "Yes."),),
)

GRANITE32 = ReasoningFormat(
    name="granite32",
    begin="Here is my thought process:",
    end="Here is my response:",
    template_marks=("Here is my thought process:", "Here is my response:"),
    examples=(
        Thought("Here is my thought process:\nHm.\n\nHere is my response:\nYes.", "Hm.", "Yes."),
        Thought("Here is my response: yes.", "", "Here is my response: yes."),
    ),
)

EXAONE = ReasoningFormat(
    name="exaone-deep",
    begin="<thought>",
    end="</thought>",
    template_marks=("<thought>",),
    examples=(Thought("Hm.\n</thought>\n\nYes.", "Hm.", "Yes.", is_open=True),),
)

KIMI = ReasoningFormat(
    name="kimi",
    begin="◁think▷",
    end="◁/think▷",
    template_marks=("◁think▷",),
    examples=(Thought("◁think▷Hm.◁/think▷Yes.", "Hm.", "Yes."),),
)

MAGISTRAL = ReasoningFormat(
    name="mistral",
    aliases=("magistral",),
    begin="[THINK]",
    end="[/THINK]",
    is_special=True,
    template_marks=("[THINK]",),
    examples=(Thought("[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),),
)
