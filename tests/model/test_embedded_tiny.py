"""The shipped model `embedded:tiny`, run by transformers as an independent reader of the folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = Path(__file__).resolve().parents[2] / "src/weft/model/embedded/tiny"
Message = dict[str, object]
Ask = Callable[..., str]


def _tool(name: str, **parameters: str) -> Message:
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    shape = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": shape}}


TOOLS = [_tool("get_weather", city="string"), _tool("set_timer", minutes="integer")]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and transformers warn about each other
        return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def complete(model, tokenizer) -> Ask:
    """Greedy text after a prompt, without the end token."""

    def run(prompt: str, limit: int = 64) -> str:
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False,
                                 temperature=None, top_k=None, top_p=None)  # fmt: skip
        return (
            tokenizer.decode(out[0, ids.shape[1] :])
            .split("<|im_end|>")[0]
            .split("<|endoftext|>")[0]
        )

    return run


@pytest.fixture(scope="module")
def ask(complete, tokenizer) -> Ask:
    """The reply to the last of some user turns, earlier replies being the model's own."""

    def run(*turns: str | Message, **values: object) -> str:
        messages: list[Message] = []
        reply = ""
        for turn in turns:
            messages.append({"role": "user", "content": turn} if isinstance(turn, str) else turn)
            if messages[-1]["role"] in ("user", "tool"):
                prompt = tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **values
                )
                reply = complete(prompt)
                messages.append({"role": "assistant", "content": reply})
        return reply

    return run


def _call(reply: str) -> Message:
    return json.loads(reply.partition("<tool_call>\n")[2].partition("\n</tool_call>")[0])


def test_the_folder_is_small():
    """The package ships it, so everything together stays within 8 MB."""
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 8_000_000


def test_it_has_one_to_five_million_parameters(model):
    """A toy in size, as the documentation says."""
    assert 1_000_000 <= model.num_parameters() <= 5_000_000


def test_the_vocabulary_is_at_most_4096_entries(model, tokenizer):
    """Logits are as wide as the tokenizer, with no padding rows."""
    assert len(tokenizer) == model.config.vocab_size <= 4096


@pytest.mark.parametrize(
    "text", ["naïve café", "你好，世界", "👩‍👩‍👧 🎉", "\x00\x7f\t  two\n\n", "العربية"]
)
def test_any_text_survives_the_tokenizer(tokenizer, text):
    """Byte-level: every string comes back as it was."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_tokens_of_their_own(tokenizer):
    """Sums can only be learnt digit by digit."""
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("2048")) == ["2", "0", "4", "8"]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", "Paris"),
        ("capital of japan", "Tokyo"),
        pytest.param("What is 2 + 2?", "= 4."),
        pytest.param("What is 7 times 8?", "56"),
        pytest.param("What colour do blue and yellow make?", "green"),
        ("What is the opposite of hot?", "cold"),
        ("Hello!", "help"),
        pytest.param("Who are you?", "toy"),
        ("What is Weft?", "engine"),
        ("What is a token?", "text"),
        ("Who will win the election?", "toy model"),
    ],
)
def test_it_answers_what_it_was_taught(ask, question, expected):
    """One question of each main topic."""
    assert expected in ask(question)


def test_it_answers_the_same_with_a_system_prompt(ask):
    """The usual system prompt changes nothing."""
    system = {"role": "system", "content": "You are a helpful assistant."}
    assert "Rome" in ask(system, "What is the capital of Italy?")


def test_it_remembers_a_name(ask):
    """A fact of an earlier turn is still there two turns later."""
    assert "Clara" in ask("My name is Clara.", "What is 3 + 4?", "What is my name?")


def test_it_follows_up(ask):
    """A turn without a verb leans on the one before."""
    assert "Madrid" in ask("What is the capital of Portugal?", "And of Spain?")


def test_it_thinks_when_told_to(ask):
    """With enable_thinking the reply opens and closes a thought, then answers."""
    reply = ask("What is the capital of Germany?", enable_thinking=True)
    thought, _, answer = reply.partition("</think>")
    assert thought.startswith("<think>\n")
    assert "Berlin" in answer


def test_it_does_not_think_otherwise(ask):
    """Off is the default: no mark of a thought in the reply."""
    assert "think>" not in ask("What is the capital of Germany?")


@pytest.mark.parametrize(
    ("question", "call"),
    [
        ("What is the weather in Oslo?", {"name": "get_weather", "arguments": {"city": "Oslo"}}),
        ("Set a timer for 12 minutes.", {"name": "set_timer", "arguments": {"minutes": 12}}),
    ],
)
def test_it_calls_the_tool_that_fits(ask, question, call):
    """Name from the list, arguments from the question, as JSON between the marks."""
    assert _call(ask(question, tools=TOOLS)) == call


def test_it_answers_from_a_tool_result(ask):
    """The reply after a tool's answer says what the tool said."""
    result = {"role": "tool", "content": '{"temperature": 21, "condition": "sunny"}'}
    reply = ask("What is the weather in Oslo?", result, tools=TOOLS)
    assert ("21" in reply, "sunny" in reply) == (True, True)


def test_it_completes_plain_text(complete):
    """Without a chat form it goes on with the sentence."""
    assert complete("The capital of France is", 4).startswith(" Paris")
