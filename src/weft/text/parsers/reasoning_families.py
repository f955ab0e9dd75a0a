"""The reasoning families, by vLLM's names of their parsers. More specific families come before more general ones."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.text.parsers.families import ReasoningFamily

REASONING_PARSERS: Mapping[str, ReasoningFamily] = MappingProxyType({
    "openai_gptoss": ReasoningFamily(
        starts=("<|channel|>analysis<|message|>",),
        ends=("<|channel|>final<|message|>",),
        models="gpt-oss",
        needs_special_tokens=True,
        template_marks=("<|channel|>", "analysis"),
        is_harmony=True,
    ),
    "seed_oss": ReasoningFamily(
        starts=("<seed:think>",),
        ends=("</seed:think>",),
        models="Seed-OSS",
        may_omit_start=True,
        needs_special_tokens=True,
        template_marks=("<seed:think>",),
    ),
    "mistral": ReasoningFamily(
        starts=("[THINK]",),
        ends=("[/THINK]",),
        models="Magistral, Ministral 3",
        needs_special_tokens=True,
        template_marks=("[THINK]",),
    ),
    "granite": ReasoningFamily(
        starts=("Here is my thought process:", "Here's my thought process:"),
        ends=("Here is my response:", "Here's my response:"),
        models="Granite 3.2",
        template_marks=("Here is my thought process:",),
    ),
    "kimi_k2": ReasoningFamily(
        models="Kimi K2 Thinking",
        may_omit_start=True,
        implicit_ends=("<|tool_calls_section_begin|>",),
        needs_special_tokens=True,
        template_marks=("<|tool_calls_section_begin|>", "<think>"),
    ),
    "hunyuan_a13b": ReasoningFamily(
        models="Hunyuan A13B",
        answer_tags=("<answer>", "</answer>"),
        template_marks=("<think>", "<answer>"),
    ),
    "ernie45": ReasoningFamily(
        models="Ernie 4.5 Thinking",
        may_omit_start=True,
        answer_tags=("<response>", "</response>"),
        needs_special_tokens=True,
        template_marks=("</think>", "<response>"),
    ),
    "minimax_m2": ReasoningFamily(
        models="MiniMax M2",
        may_omit_start=True,
        needs_special_tokens=True,
        template_marks=("<minimax:tool_call>", "</think>"),
    ),
    "glm45": ReasoningFamily(
        models="GLM-4.5, 4.6, 4.7",
        needs_special_tokens=True,
        template_marks=("<arg_key>", "</think>"),
    ),
    "step3": ReasoningFamily(
        models="Step3",
        may_omit_start=True,
        needs_special_tokens=True,
        template_marks=("steptml", "<think>"),
    ),
    "olmo3": ReasoningFamily(
        models="OLMo 3 Think",
        may_omit_start=True,
        template_marks=("<functions>", "<think>"),
    ),
    "deepseek_v3": ReasoningFamily(
        models="DeepSeek V3.1, V3.2",
        template_marks=("<｜Assistant｜>", "</think>", "thinking"),
    ),
    "deepseek_r1": ReasoningFamily(
        models="DeepSeek R1 and its distillations, QwQ",
        may_omit_start=True,
        template_marks=("<｜Assistant｜>", "</think>"),
    ),
    "qwen3": ReasoningFamily(
        models="Qwen 3, and others that think between <think> and </think>",
        may_omit_start=True,
        switch="enable_thinking",
        template_marks=("</think>",),
    ),
})  # fmt: skip
