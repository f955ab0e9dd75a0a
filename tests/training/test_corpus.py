"""The generator of the tiny model's corpus: seeded, split, and rendered as the chat template renders."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import jinja2
import jinja2.sandbox
import pytest

from training.tiny import arithmetic, corpus, toolbox
from training.tiny.document import (
    Message,
    chat_pieces,
    is_held_out,
    prompt_text,
    tool_call_text,
    tool_response_text,
)

TEMPLATE = Path(__file__).resolve().parents[2] / "src/weft/model/embedded/tiny/chat_template.jinja"
TOOL = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def _render(messages: list[dict[str, object]], **values: object) -> str:
    def stop(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = stop
    return environment.from_string(TEMPLATE.read_text()).render(messages=messages, **values)


def _text(messages: list[Message], **values: object) -> str:
    return "".join(piece.text for piece in chat_pieces(messages, **values))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_documents():
    """Training is repeatable: documents depend on the seed alone."""
    first = list(itertools.islice(corpus.documents(3), 200))
    second = list(itertools.islice(corpus.documents(3), 200))
    assert first == second


def test_another_seed_gives_other_documents():
    """The stream is drawn, not listed."""
    first = list(itertools.islice(corpus.documents(3), 50))
    assert first != list(itertools.islice(corpus.documents(4), 50))


@pytest.mark.parametrize(
    "maker", [maker for maker, _ in corpus.TOPICS], ids=lambda maker: maker.__name__
)
def test_every_topic_has_both_sides_of_the_split(maker):
    """Each topic can be trained and measured, and a draw is on the side that was asked for."""
    rng = random.Random(5)
    seen = corpus.draw(rng, maker, held_out=False)
    kept = corpus.draw(rng, maker, held_out=True)
    assert (is_held_out(seen.key), is_held_out(kept.key)) == (False, True)


@pytest.mark.parametrize(
    "maker", [maker for maker, _ in corpus.TOPICS], ids=lambda maker: maker.__name__
)
def test_an_answer_holds_what_evaluation_looks_for(maker):
    """`must` is judged without case, so a perfect model scores 100 %."""
    rng = random.Random(6)
    wrong = [
        exchange
        for exchange in (maker(rng) for _ in range(200))
        if exchange.must.lower() not in exchange.answer.lower()
    ]
    assert wrong == []


def test_a_held_out_sum_never_reaches_training():
    """The pair decides the split, in both orders, for chats, stories and drills; partial sums of a thought are free."""
    texts = "\n".join(document.text for document in itertools.islice(corpus.documents(8), 3000))
    equations = re.findall(r"(?<!Tens: )(?<!Ones: )\b(\d+) ([-+*]) (\d+) = \d", texts)
    leaked = [
        equation
        for equation in equations
        if is_held_out(arithmetic.expression_key(int(equation[0]), equation[1], int(equation[2])))
    ]
    assert (len(equations) > 1000, leaked) == (True, [])


def test_a_conversation_is_rendered_as_the_template_does():
    """Training text and prompt at run time are the same characters."""
    messages = [
        Message("user", "hi"),
        Message("assistant", "Hello!"),
        Message("user", "2+2"),
        Message("assistant", "4"),
    ]
    rendered = _render(
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "<think>\nx\n</think>\n\nHello!"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2"}],
            },
        ],
        add_generation_prompt=True,
    )
    assert _text(messages, system="S") == rendered + "4<|im_end|>"


def test_thinking_on_leaves_the_thought_to_the_model():
    """With enable_thinking the prompt ends at the assistant's name."""
    pieces = chat_pieces(
        [Message("user", "hi"), Message("assistant", "Hello!", "A greeting.")], thinking=True
    )
    rendered = _render(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, enable_thinking=True
    )
    assert (
        prompt_text(pieces, thinking=True)
        == rendered[: -len("<|im_start|>assistant\n")] + "<|im_start|>assistant\n"
    )
    assert pieces[-1].text == "<think>\nA greeting.\n</think>\n\nHello!<|im_end|>"


@pytest.mark.parametrize(
    "arguments", [{"city": "Zürich"}, '{"city": "Zürich"}'], ids=["object", "text"]
)
def test_tools_calls_and_results_are_rendered_as_the_template_does(arguments):
    """Tool list, call and result have one form; arguments may come as an object or as JSON text."""
    messages = [
        Message("user", "weather?"),
        Message("assistant", tool_call_text("get_weather", {"city": "Zürich"})),
        Message("user", tool_response_text("sunny")),
        Message("assistant", "It is sunny."),
    ]
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    rendered = _render(
        [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ],
        tools=[{"type": "function", "function": TOOL}],
        add_generation_prompt=True,
    )
    assert _text(messages, tools=[TOOL]) == rendered + "It is sunny.<|im_end|>"


def test_two_results_share_one_user_turn():
    """Neighbouring tool messages become one turn."""
    rendered = _render(
        [
            {"role": "user", "content": "go"},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
        ]
    )
    assert rendered.endswith(
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
    )


@pytest.mark.parametrize(
    "message",
    [
        {"role": "wizard", "content": "x"},
        {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
    ],
    ids=["role", "part"],
)
def test_the_template_refuses_what_it_cannot_render(message):
    """An unknown role or part raises instead of vanishing."""
    with pytest.raises(jinja2.TemplateError, match=r"Unknown role|Only text parts"):
        _render([message])


def test_a_call_uses_the_names_of_its_schema():
    """The right answer is always readable from the prompt."""
    rng = random.Random(9)
    tools = [tool for _ in range(100) for tool in toolbox.draw_tools(rng)]
    calls = [(tool, toolbox.make_call(rng, tool)) for tool in tools]
    wrong = [
        call
        for tool, call in calls
        if call.name != tool.schema["name"] or list(call.arguments) != list(tool.parameters)
    ]
    assert wrong == []
