"""Which families a chat template belongs to, and whether a prompt leaves the thoughts open."""

from pathlib import Path

import pytest

import weft.model.embedded
from weft.text.parsers.table import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    choose_reasoning_parser,
    choose_tool_parser,
    starts_in_reasoning,
)
from weft.text.parsers.tool_families import ALIASES
from weft.text.templates.chat import ChatTemplate

TINY = Path(weft.model.embedded.__file__).parent / "tiny" / "chat_template.jinja"
UNTOLD = {"llama4_json", "xlam", *ALIASES}  # written like others; a template does not say which


def test_the_embedded_model_is_known():
    """Its template writes calls as Hermes does, and closes thoughts unless asked for them."""
    source = TINY.read_text(encoding="utf-8")
    assert (choose_tool_parser(source), choose_reasoning_parser(source)) == ("hermes", "qwen3")
    with ChatTemplate(source, {}) as template:
        messages = [{"role": "user", "content": "Hi <think>"}]
        closed = template.render(messages)
        asked = template.render(messages, template_kwargs={"enable_thinking": True})
    family = REASONING_PARSERS["qwen3"]
    assert starts_in_reasoning(closed, family) is False
    assert starts_in_reasoning(asked, family) is None


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS.keys() - UNTOLD))
def test_a_template_with_a_familys_marks_is_of_the_family(name):
    """Families with more marks, or rarer ones, are tried before those that share some of them."""
    marks = TOOL_PARSERS[name].template_marks
    source = "{% for message in messages %}" + " ".join(marks) + "{% endfor %}"
    assert choose_tool_parser(source) == name


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_a_template_with_the_marks_of_thoughts_is_of_the_family(name):
    """The same for thoughts."""
    marks = REASONING_PARSERS[name].template_marks
    assert choose_reasoning_parser("{{ bos_token }}" + "\n".join(marks)) == name


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS.keys() - UNTOLD - {"pythonic", "llama3_json"}))
def test_what_a_template_writes_is_what_its_family_reads(name):
    """The marks are not just any words: some of them stand in the family's own example or tags."""
    family = TOOL_PARSERS[name]
    own = (family.example, *family.openers, *family.sections, *family.closers)
    known = {"<|/tool|>", "<|header_start|>"}
    assert any(mark in text for mark in family.template_marks for text in own) or (
        known & set(family.template_marks)
    )


@pytest.mark.parametrize(
    "source", ["", "{{ messages[0].content }}", "<|im_start|>{{ message.role }}", "[INST] {{ x }}"]
)
def test_a_template_without_marks_is_of_no_family(source):
    """Nothing is guessed."""
    assert (choose_tool_parser(source), choose_reasoning_parser(source)) == (None, None)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", None),
        ("<｜Assistant｜></think>", False),
        ("", None),
    ],
)
def test_the_end_of_a_prompt_says_whether_thoughts_are_open(prompt, expected):
    """Only the end: what users write between marks opens nothing."""
    assert starts_in_reasoning(prompt, REASONING_PARSERS["deepseek_r1"]) is expected


def test_a_prompt_may_end_in_the_analysis_channel():
    """The harmony format has its own marks for the same."""
    family = REASONING_PARSERS["openai_gptoss"]
    assert starts_in_reasoning("<|start|>assistant<|channel|>analysis<|message|>", family) is True
    assert starts_in_reasoning("<|start|>assistant", family) is None
