"""The families of reasoning, by the names that vLLM gives their parsers. The more special come first."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.text.parsers.families import ReasoningFamily

_THINK: tuple[str, ...] = ("<think>",)
_THINK_END: tuple[str, ...] = ("</think>",)

REASONING_PARSERS: Mapping[str, ReasoningFamily] = MappingProxyType({
    "openai_gptoss": ReasoningFamily(
        ("<|channel|>analysis<|message|>",),
        ("<|channel|>final<|message|>",),
        models="gpt-oss",
        needs_special_tokens=True,
        template_marks=("<|channel|>", "analysis"),
        is_harmony=True,
    ),
    "seed_oss": ReasoningFamily(
        ("<seed:think>",),
        ("</seed:think>",),
        models="Seed-OSS",
        may_omit_start=True,
        needs_special_tokens=True,
        template_marks=("<seed:think>",),
    ),
    "mistral": ReasoningFamily(
        ("[THINK]",),
        ("[/THINK]",),
        models="Magistral, Ministral 3",
        needs_special_tokens=True,
        template_marks=("[THINK]",),
    ),
    "granite": ReasoningFamily(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        models="Granite 3.2",
        template_marks=("Here is my thought process:",),
    ),
    "kimi_k2": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="Kimi K2 Thinking",
        may_omit_start=True,
        implicit_ends=("<|tool_calls_section_begin|>",),
        needs_special_tokens=True,
        template_marks=("<|tool_calls_section_begin|>", "<think>"),
    ),
    "hunyuan_a13b": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="Hunyuan A13B",
        answer_tags=("<answer>", "</answer>"),
        template_marks=("<think>", "<answer>"),
    ),
    "ernie45": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="Ernie 4.5 Thinking",
        may_omit_start=True,
        answer_tags=("<response>", "</response>"),
        needs_special_tokens=True,
        template_marks=("</think>", "<response>"),
    ),
    "minimax_m2": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="MiniMax M2",
        may_omit_start=True,
        needs_special_tokens=True,
        template_marks=("<minimax:tool_call>", "</think>"),
    ),
    "glm45": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="GLM-4.5, 4.6, 4.7",
        needs_special_tokens=True,
        template_marks=("<arg_key>", "</think>"),
    ),
    "step3": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="Step3",
        may_omit_start=True,
        needs_special_tokens=True,
        template_marks=("steptml", "<think>"),
    ),
    "olmo3": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="OLMo 3 Think",
        may_omit_start=True,
        template_marks=("<functions>", "<think>"),
    ),
    "deepseek_v3": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="DeepSeek V3.1, V3.2",
        template_marks=("<｜Assistant｜>", "</think>", "thinking"),
    ),
    "deepseek_r1": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="DeepSeek R1 and its distillations, QwQ",
        may_omit_start=True,
        template_marks=("<｜Assistant｜>", "</think>"),
    ),
    "qwen3": ReasoningFamily(
        _THINK,
        _THINK_END,
        models="Qwen 3, and others that think between <think> and </think>",
        template_marks=("</think>",),
    ),
})  # fmt: skip
