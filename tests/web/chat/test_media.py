"""Images, video and sound in messages of each API: to items of a prompt, with anchors where the template puts them."""

from functools import partial

import msgspec
import pytest

from tests.web.anthropic.calls import MESSAGES
from tests.web.anthropic.calls import make_call as make_message_call
from tests.web.serving import ECHO, call_of, serving
from weft.core.errors import BadRequest
from weft.core.values.media import MediaConfig, MediaItem
from weft.text.templates.chat import ChatTemplate
from weft.web.anthropic.messages import to_turn as to_message_turn
from weft.web.chat.run import prepare_turn
from weft.web.inference.call import to_model_call
from weft.web.items.content_parts import listed_of_chat
from weft.web.items.items import read_input
from weft.web.openai import ENDPOINTS
from weft.web.openai.chat import to_turn

ALL = MediaConfig(max_items={"image": 2, "video": 1, "audio": 1})
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<{{ part['type'] }}>{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}


async def prepared(content, media=ALL, template=TEMPLATE, **fields):
    """The request of a chat with one message."""
    async with serving(ECHO, template=template, media=media) as served:
        body = {"messages": [{"role": "user", "content": content}], **fields}
        call = await to_model_call(call_of(BY_PATH, served, "/v1/chat/completions", body))
        return (await prepare_turn(served, to_turn(call, call.body))).request


async def refusal(content, **fields) -> BadRequest:
    """What is said of it."""
    with pytest.raises(BadRequest) as caught:
        await prepared(content, **fields)
    return caught.value


async def test_parts_become_items_in_order():
    """Each leaves its anchor where it stood."""
    request = await prepared(
        [
            {"type": "text", "text": "a"},
            {**IMAGE, "uuid": "u"},
            {"type": "video_url", "video_url": {"url": "https://host/v.mp4"}},
            {"type": "text", "text": "b"},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "image_url", "image_url": "http://host/i.png"},
        ],
        mm_processor_kwargs={"num_crops": 4},
    )
    assert request.prompt == "a<image><video>b<audio><image>"
    assert request.media.items == [
        MediaItem(modality="image", url=URL, uuid="u"),
        MediaItem(modality="video", url="https://host/v.mp4"),
        MediaItem(modality="audio", url="data:audio/wav;base64,AAAA"),
        MediaItem(modality="image", url="http://host/i.png"),
    ]
    assert request.media.processor_kwargs == {"num_crops": 4}


@pytest.mark.parametrize("image", [{"image_url": None}, {}, {"image_url": {"url": ""}}])
async def test_a_uuid_stands_for_what_was_seen(image):
    """Without its bytes."""
    request = await prepared([{"type": "image_url", "uuid": "u", **image}])
    assert request.media.items == [MediaItem(modality="image", uuid="u")]


async def test_texts_are_as_ever():
    """Where an engine takes media and a conversation has none."""
    assert (await prepared([{"type": "text", "text": "a"}])).media is None
    assert (await prepared("a")).prompt == "a"


@pytest.mark.parametrize(
    ("part", "fields", "parameter", "words"),
    [
        ({"type": "image_url"}, {}, "messages", "neither an address nor a uuid"),
        ({"type": "image_url", "image_url": {"url": 1}}, {}, "messages", "messages[0].content[0]"),
        (IMAGE | {"uuid": "x" * 300}, {}, "messages", "uuid must have 1 to 256 characters"),
        (IMAGE | {"uuid": ""}, {}, "messages", "uuid must have 1 to 256 characters"),
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            {}, "messages", "detail must be absent, auto, high or original",
        ),
        ({"type": "image"}, {}, "messages", "parts of type 'image' are not taken"),
        ({"type": "audio_embeds"}, {}, "messages", "parts of type 'audio_embeds' are not taken"),
        (
            {"type": "input_audio", "input_audio": {"data": "A", "format": "x/y"}},
            {}, "messages", "input_audio.format",
        ),
        (IMAGE, {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "does not go with media"),
        (IMAGE, {"prompt_logprobs": 1}, "prompt_logprobs", "does not go with media"),
        (
            IMAGE, {"use_beam_search": True, "temperature": 0},
            "use_beam_search", "does not go with media",
        ),
        ({"type": "text", "text": "x"}, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs",
         "needs media"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_part_is_said(part, fields, parameter, words):
    """With its place."""
    error = await refusal([part], **fields)
    assert error.parameter == parameter
    assert words in str(error)


async def test_no_more_are_taken_than_a_prompt_may_have():
    """Of each modality, before any of them is fetched."""
    error = await refusal([IMAGE, IMAGE, IMAGE])
    assert (error.parameter, error.value) == ("messages", 3)
    assert "image: at most 2 may be given in one prompt, got 3" in str(error)
    error = await refusal([IMAGE], media=MediaConfig(max_items={"audio": 1}))
    assert "image: this model takes none" in str(error)


async def test_an_engine_of_texts_refuses_them_by_name():
    """As one that never had any."""
    error = await refusal([IMAGE], media=None)
    assert str(error).endswith("may hold parts of type text, got 'image_url'")
    error = await refusal("x", media=None, mm_processor_kwargs={"a": 1})
    assert error.parameter == "mm_processor_kwargs"


async def test_a_template_of_texts_says_nowhere_what_stands_for_them():
    """The model would be shown nothing, or too much."""
    error = await refusal([IMAGE], template="{{ messages[0]['content'] }}")
    assert "this chat template takes texts" in str(error)


async def test_an_anchor_in_a_text_is_no_picture():
    """Whoever writes one would have the model read past the pictures that there are."""
    anchors = MediaConfig(max_items={"image": 2}, anchor_ids={"image": ord("#")})
    template = TEMPLATE.replace("<{{ part['type'] }}>", "#")
    assert (await prepared([IMAGE], media=anchors, template=template)).prompt == "#"
    error = await refusal([IMAGE, {"type": "text", "text": "#"}], media=anchors, template=template)
    assert "the prompt has 2 placeholder tokens 35" in str(error)
    assert "1 of these are given" in str(error)


def test_no_text_makes_a_placeholder():
    """What a body holds is data, whatever it is called."""
    with ChatTemplate(TEMPLATE, {}) as template, pytest.raises(BadRequest, match="'image'"):
        template.render([{"role": "user", "content": [{"type": "image"}]}])


# -- the other APIs -------------------------------------------------------------------------------


async def messages_of(content, media=ALL):
    """An Anthropic message's, in OpenAI's form."""
    async with serving(ECHO, media=media) as served:
        body = {
            "model": served.client.model_config.served_model_name,
            "max_tokens": 4,
            "messages": [{"role": "user", "content": content}],
        }
        call = await to_model_call(make_message_call(served, MESSAGES, body))
        return to_message_turn(call, call.body).messages


async def test_anthropics_images_are_those_of_chat():
    """In base64 or by address, and in what a tool has answered."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    by_url = {"type": "url", "url": "https://host/a.png"}
    (message,) = await messages_of(
        [{"type": "image", "source": source}, {"type": "image", "source": by_url}]
    )
    assert message["content"] == [
        IMAGE,
        {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
    ]
    with pytest.raises(BadRequest, match="blocks of type image are not taken"):
        await messages_of([{"type": "image", "source": source}], media=None)


@pytest.mark.parametrize(
    "source",
    [
        {"type": "file", "file_id": "f"},
        {"type": "base64", "data": "AAAA"},
        {"type": "base64", "media_type": "image/svg+xml", "data": "AAAA"},
        {"type": "url"},
        {"type": "url", "url": "http://a", "data": "AAAA"},
    ],
)
async def test_other_sources_are_refused(source):
    """With the place."""
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[0\]\.source"):
        await messages_of([{"type": "image", "source": source}])


async def test_images_of_responses_are_those_of_chat():
    """And are listed as they were given."""
    part = {"type": "input_image", "image_url": URL, "detail": "auto"}
    given = [{"role": "user", "content": [part]}]
    read = partial(read_input, given, find_item=lambda _: None)
    conversation = await read(takes_media=True)
    assert conversation.items[0]["content"] == [part]
    (shown,) = conversation.messages[0]["content"]
    assert shown == {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}}
    with pytest.raises(BadRequest, match="this server takes text only"):
        await read()


async def test_sounds_of_responses_are_those_of_chat():
    """And are listed as they were given, from either form."""
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    given = [{"role": "user", "content": [part]}]
    read = partial(read_input, given, find_item=lambda _: None)
    conversation = await read(takes_media=True)
    assert conversation.items[0]["content"] == [part]
    assert conversation.messages[0]["content"] == [part]
    assert listed_of_chat(part) == part
    with pytest.raises(BadRequest, match="this server takes text only"):
        await read()
    given[0]["content"] = [{"type": "input_audio", "input_audio": {"data": "AAAA"}}]
    with pytest.raises(BadRequest, match=r"`format` - at `input\[0\]\.content\[0\]"):
        await read(takes_media=True)


def test_requests_cross_processes_with_their_media():
    """As every other field of theirs does."""
    item = MediaItem(modality="image", data=b"\x00\xff", uuid="u")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=MediaItem) == item
