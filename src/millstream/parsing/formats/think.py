"""Reasoning between a pair of tags: DeepSeek-R1, Qwen 3, GLM, Kimi, Magistral and most others."""

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
    aliases=("glm45", "kimi_k2", "deepseek-v3", "think"),
    begin="<think>",
    end="</think>",
    template_marks=("</think>",),
    examples=_EXAMPLES,
)

DEEPSEEK_R1 = ReasoningFormat(
    name="deepseek-r1",
    aliases=("deepseek_r1", "qwen3-thinking"),
    begin="<think>",
    end="</think>",
    is_open=True,
    examples=_EXAMPLES,
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
