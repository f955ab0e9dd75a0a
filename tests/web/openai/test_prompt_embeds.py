"""/v1/completions of prompts that are embeddings."""

from base64 import b64encode

import numpy as np
import pytest
from safetensors.numpy import save

from tests.web.openai.calls import CHAT, answer, complete, complete_chunks, flat_texts, folded_texts
from tests.web.openai.test_completions import SEEDED
from tests.web.serving import RANDOM, serving
from weft.core.errors import BadRequest
from weft.model.open import open_model
from weft.web.options import ApiOptions

TABLE = open_model(RANDOM).load().tensors["embed"].unpacked().float32()
IDS = [[5, 9, 200, 31], [7, 7, 7]]
MIXED = {"prompt": [[3, 4]], "n": 2, **SEEDED}


def encoded(token_ids):
    return b64encode(save({"rows": TABLE[token_ids]})).decode()


async def test_embeddings_are_answered_as_their_tokens_are():
    """One or several, before the prompts beside them, whole and streamed; an empty text beside them is none."""
    async with serving(enable_prompt_embeds=True) as served:
        expected = await complete(served, {**MIXED, "prompt": [*IDS, [3, 4]]})
        body = {**MIXED, "prompt_embeds": [encoded(ids) for ids in IDS]}
        whole = await complete(served, body)
        streamed = await complete_chunks(served, body)
        one = await complete(served, {**SEEDED, "prompt": "", "prompt_embeds": encoded(IDS[0])})
        bare = await complete(
            served, {**SEEDED, "prompt": None, "prompt_embeds": encoded(IDS[0]), "cache_salt": "s"}
        )
    assert whole["choices"] == expected["choices"]
    assert folded_texts(streamed) == flat_texts(expected)
    assert whole["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"] == 9
    assert one["choices"] == bare["choices"] == whole["choices"][:1]


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ({"use_beam_search": True, "n": 2}, "use_beam_search"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"prompt_embeds": [encoded([1])] * 129}, "prompt"),
        ({"prompt_embeds": encoded([1] * 1024)}, "prompt"),
        (
            {"prompt_embeds": b64encode(save({"a": np.ones((2, 3), np.float32)})).decode()},
            "prompt_embeds",
        ),
    ],
)
async def test_what_does_not_go_with_them_is_refused(changes, parameter):
    """By name, before anything runs."""
    body = {"prompt_embeds": encoded(IDS[0]), **changes}
    async with serving(enable_prompt_embeds=True) as served:
        with pytest.raises(BadRequest) as caught:
            await complete(served, body)
        assert served.client.num_active_requests == 0
    assert caught.value.parameter == parameter


async def test_they_have_no_ids_to_render():
    """What would be rendered are ids that mean nothing."""
    async with serving(enable_prompt_embeds=True) as served:
        with pytest.raises(BadRequest, match="prompt_embeds"):
            await answer(served, "/v1/completions/render", {"prompt_embeds": encoded(IDS[0])})


async def test_a_server_without_the_flag_says_its_name(served):
    """It is off where nobody asked for it."""
    with pytest.raises(BadRequest, match="--enable-prompt-embeds"):
        await complete(served, {"prompt_embeds": encoded(IDS[0])})


def chat(*content, role="user", **fields):
    return {
        "messages": [{"role": role, "content": list(content)}],
        "max_tokens": 8,
        **fields,
    }


def text(words):
    return {"type": "text", "text": words}


async def test_chat_messages_hold_them_between_texts():
    """Rows stand where the template puts the part; what is said around them stays text."""
    async with serving(enable_prompt_embeds=True) as served:
        rows = encoded(served.tokenizer.encode("cd ef", add_special_tokens=False))
        part = {"type": "prompt_embeds", "data": rows}
        whole = await answer(served, CHAT, chat(text("ab\ncd ef\ngh\ncd ef"), seed=7))
        mixed = await answer(served, CHAT, chat(text("ab"), part, text("gh"), part, seed=7))
    assert mixed["choices"] == whole["choices"]
    assert mixed["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


PART = {"type": "prompt_embeds", "data": encoded(IDS[0])}


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (chat({"type": "prompt_embeds"}), "messages"),
        (chat({**PART, "data": 5}), "messages"),
        (chat({**PART, "source_text": "a"}), "messages"),
        (chat({**PART, "data": "AAAA"}), "prompt_embeds"),
        (chat(PART, use_beam_search=True, n=2, temperature=0), "use_beam_search"),
        (chat(PART, prompt_logprobs=1), "prompt_logprobs"),
        (chat(PART, chat_template="{{ 1 }}"), "messages"),
    ],
)
async def test_a_part_that_cannot_be_followed_is_refused(body, parameter):
    """By the name of what is wrong."""
    trusting = ApiOptions(trust_request_chat_template=True)
    async with serving(enable_prompt_embeds=True, options=trusting) as served:
        with pytest.raises(BadRequest) as caught:
            await answer(served, CHAT, body)
    assert caught.value.parameter == parameter


async def test_chats_of_a_server_without_the_flag_say_its_name(served):
    """As completions do."""
    with pytest.raises(BadRequest, match="--enable-prompt-embeds"):
        await answer(served, CHAT, chat(PART))
