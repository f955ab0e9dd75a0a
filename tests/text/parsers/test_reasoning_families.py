"""Thoughts in front of an answer, with and without the marks that should be there."""

import pytest

from tests.text.parsers.taking_apart import cuts, take_apart
from weft.core.errors import ConfigError
from weft.text.parsers.table import REASONING_PARSERS, TOOL_PARSERS, make_output_parser

OMITS_START = [name for name, family in REASONING_PARSERS.items() if family.may_omit_start]
MARKED = [name for name, family in REASONING_PARSERS.items() if not family.is_harmony]
NEEDS_START = [name for name in MARKED if name not in OMITS_START]

ANSWERS = {
    "no thoughts": ("glm45", None, "Hi <b>", [("c", "Hi <b>")]),
    "qwen3: the start is missing": (
        "qwen3",
        None,
        "Hm.</think>\n\nHi",
        [("r", "Hm."), ("c", "Hi")],
    ),
    "empty thoughts": ("qwen3", None, "<think>\n\n</think>\n\nHi", [("c", "Hi")]),
    "cut off": ("qwen3", None, "<think>\nHm. </thi", [("r", "Hm. </thi")]),
    "a second pair of marks is text": (
        "qwen3",
        None,
        "<think>a</think>b<think>c</think>",
        [("r", "a"), ("c", "b<think>c</think>")],
    ),
    "calls in thoughts are thoughts": (
        "qwen3",
        "hermes",
        (
            '<think>I could <tool_call>{"name": "f"}</tool_call></think>\n\n'
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        ),
        [("r", 'I could <tool_call>{"name": "f"}</tool_call>'), ("call", "f", "{}")],
    ),
    "bare JSON behind thoughts": (
        "deepseek_r1",
        "llama3_json",
        'Hm.</think>\n{"name": "f", "parameters": {}}',
        [("r", "Hm."), ("call", "f", "{}")],
    ),
    "kimi_k2: a call ends thoughts": (
        "kimi_k2",
        "kimi_k2",
        (
            "<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
        ),
        [("r", "Hm."), ("call", "f", "{}", "functions.f:0")],
    ),
    "kimi_k2: a call ends thoughts where nobody looks for calls": (
        "kimi_k2",
        None,
        "<think>Hm.<|tool_calls_section_begin|> <|tool_call_begin|>functions.f:0",
        [("r", "Hm."), ("c", "<|tool_calls_section_begin|> <|tool_call_begin|>functions.f:0")],
    ),
    "kimi_k2: a call ends thoughts where others' calls are looked for": (
        "kimi_k2",
        "hermes",
        'Hm.<|tool_calls_section_begin|><tool_call>{"name": "f", "arguments": {}}</tool_call>',
        [("r", "Hm."), ("c", "<|tool_calls_section_begin|>"), ("call", "f", "{}")],
    ),
    "kimi_k2: nothing follows the mark": (
        "kimi_k2",
        None,
        "Hm.<|tool_calls_section_begin|>",
        [("r", "Hm."), ("c", "<|tool_calls_section_begin|>")],
    ),
    "hunyuan_a13b: tags around the answer": (
        "hunyuan_a13b",
        "hunyuan_a13b",
        "<think>\nHm.</think>\n<answer>\nHi</answer>",
        [("r", "Hm."), ("c", "Hi")],
    ),
    "harmony: thoughts, preamble, call, answer": (
        "openai_gptoss",
        "openai",
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
            "I'll look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
            '<|constrain|>json<|message|>{"city": "Paris"}<|call|>'
        ),
        [("r", "Hm."), ("c", "I'll look."), ("call", "get_weather", '{"city": "Paris"}')],
    ),
    "harmony: recipient before the channel": (
        "openai_gptoss",
        "openai",
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|channel|>"
            "commentary json<|message|><|call|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"
        ),
        [("r", "Hm."), ("call", "f", "{}"), ("c", "Hi")],
    ),
    "harmony: a recipient at once": (
        "openai_gptoss",
        "openai",
        " to=functions.f<|channel|>commentary<|message|>{}<|call|>",
        [("call", "f", "{}")],
    ),
    "harmony: words like a recipient's": ("openai_gptoss", "openai", "to=you", [("c", "to=you")]),
    "harmony: no channels": ("openai_gptoss", "openai", " Hi, you", [("c", " Hi, you")]),
    "harmony: cut off in a header": (
        "openai_gptoss",
        None,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assist",
        [("r", "Hm.")],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_thoughts_come_first(name):
    """However it is cut, an answer is these thoughts, texts and calls."""
    reasoning, tool, text, expected = ANSWERS[name]
    found = [take_apart(pieces, reasoning, tool) for pieces in cuts(text)]
    assert found == [expected] * 3


@pytest.mark.parametrize("name", MARKED)
def test_thoughts_stand_between_the_marks_of_the_family(name):
    """The marks and the white space at them are nobody's text."""
    family = REASONING_PARSERS[name]
    text = f"\n{family.starts[-1]}\nHm.{family.ends[-1]}\n\nHi"
    assert [take_apart(pieces, name) for pieces in cuts(text)] == [[("r", "Hm."), ("c", "Hi")]] * 3


@pytest.mark.parametrize("name", OMITS_START)
def test_the_start_may_be_missing(name):
    """These models' prompts begin the thoughts; without a word from the prompt they are assumed."""
    end = REASONING_PARSERS[name].reasoning_end
    assert take_apart(f"Hm.{end}Hi", name) == [("r", "Hm."), ("c", "Hi")]
    assert take_apart("Hm.", name) == [("r", "Hm.")]


@pytest.mark.parametrize("name", NEEDS_START)
def test_without_a_start_there_are_no_thoughts(name):
    """These models write the start themselves, or do not think."""
    assert take_apart("Hm.", name) == [("c", "Hm.")]
    assert take_apart("Hm.", name, starts_in_reasoning=True) == [("r", "Hm.")]


@pytest.mark.parametrize("name", MARKED)
def test_a_prompt_that_closed_the_thoughts_is_believed(name):
    """Then the answer is all there is, marks or not."""
    start = REASONING_PARSERS[name].starts[0]
    assert take_apart(f"{start}Hi", name, starts_in_reasoning=False) == [("c", f"{start}Hi")]


def test_harmony_goes_on_where_the_prompt_left_it():
    """A prompt may end inside a message of the analysis channel."""
    text = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"
    found = take_apart([text], "openai_gptoss", "openai", starts_in_reasoning=True)
    assert found == [("r", "Hm."), ("c", "Hi")]


def test_harmony_and_other_families_do_not_mix():
    """One format holds both; half of it would lose the other half's text."""
    with pytest.raises(ConfigError, match="openai_gptoss"):
        make_output_parser(reasoning="qwen3", tool="openai")


@pytest.mark.parametrize(
    ("reasoning", "tool", "flag"),
    [("x", None, "reasoning_parser"), (None, "x", "tool_call_parser")],
)
def test_an_unknown_name_is_refused_with_those_that_are_known(reasoning, tool, flag):
    """The message names the setting and what it may be."""
    with pytest.raises(ConfigError, match=f"{flag}: 'x' is unknown; must be .*granite"):
        make_output_parser(reasoning=reasoning, tool=tool)


@pytest.mark.parametrize("family", TOOL_PARSERS)
def test_end_markers_are_nobodys_text(family):
    """Special tokens that end a turn are left out, wherever a cut falls."""
    text = TOOL_PARSERS[family].example + "<|im_end|>"
    bare = take_apart([TOOL_PARSERS[family].example], tool=family)
    found = [take_apart(pieces, tool=family, end_markers=["<|im_end|>"]) for pieces in cuts(text)]
    assert found == [bare] * 3


def test_ids_count_over_the_conversation():
    """A call without an id gets the number behind those of earlier turns."""
    text = "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>"
    found = take_apart([text], tool="kimi_k2", num_earlier_calls=5)
    assert found == [("call", "f", "{}", "functions.f:5")]


@pytest.mark.parametrize("tool", [None, *(n for n, f in TOOL_PARSERS.items() if not f.is_harmony)])
@pytest.mark.parametrize("name", [n for n in MARKED if REASONING_PARSERS[n].implicit_ends])
def test_a_mark_that_ends_thoughts_may_stand_before_anything(name, tool):
    """Whoever's calls are looked for, or nobody's: there are thoughts, and then what is left."""
    end = REASONING_PARSERS[name].implicit_ends[0]
    for rest in ("", "Hi", end, "{", "[", "<tool_call>"):
        parts = take_apart(f"Hm.{end}{rest}", name, tool)
        assert parts[0] == ("r", "Hm.")


def test_a_template_without_a_switch_is_of_a_model_that_does_not_reason():
    """Qwen 3 Instruct has the marks in its template, for past turns, and writes none: its answer is content."""
    family = REASONING_PARSERS["qwen3"]
    assert family.with_template("{% if enable_thinking %}").may_omit_start
    assert not family.with_template("{{ content.split('</think>')[-1] }}").may_omit_start
    assert REASONING_PARSERS["deepseek_r1"].with_template("").may_omit_start
