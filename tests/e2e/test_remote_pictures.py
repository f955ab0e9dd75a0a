"""Pictures through `--remote`: every HTTP API answers field by field as it does beside the engine."""

from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from tests.doubles.pictures import data_url, noise
from tests.e2e.test_remote_as_local import (
    VISION,
    Site,
    chat,
    check_same,
    message,
    response,
    says,
    site_of,
)


@pytest.fixture(scope="module")
def vision() -> Iterator[Site]:
    """A model that takes pictures."""
    yield from site_of("vision")


RED = data_url(Image.new("RGB", (120, 90), (214, 40, 40)))
NOISE = data_url(noise(1, 70, 30))


def looks(*urls: str, **body: Any) -> tuple[str, dict[str, Any]]:
    """A chat about pictures."""
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
    question = {"type": "text", "text": "What colour is the background?"}
    return chat(messages=[{"role": "user", "content": [*parts, question]}], **body)


SOURCE = {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]}
SEEN = [{"type": "image", "source": SOURCE}, {"type": "text", "text": "What is it?"}]
SHOWN = [{"type": "input_image", "image_url": RED}, {"type": "input_text", "text": "What is it?"}]
FOR_VISION = {
    "one": looks(RED),
    "two": looks(RED, NOISE, return_token_ids=True),
    "several answers": looks(NOISE, n=3, temperature=0.8, seed=3, logprobs=True, top_logprobs=2),
    "stream": looks(NOISE, stream=True, stream_options={"include_usage": True}),
    "streamed answers": looks(NOISE, stream=True, n=2, temperature=0.8, seed=5, return_token_ids=True),
    "message": message(SEEN, model=VISION),
    "streamed message": message(SEEN, model=VISION, stream=True),
    "response": response([{"role": "user", "content": SHOWN}]),
    "processor": looks(RED, mm_processor_kwargs={"do_image_splitting": False}),
    "no picture": looks(),
    # Refused.
    "unknown argument": looks(RED, mm_processor_kwargs={"x": 1}),
    "damaged": looks("data:image/png;base64,AAAA"),
    "forbidden address": looks("http://127.0.0.1:1/a.png"),
    "forbidden file": looks("file:///etc/passwd"),
    "too many": looks(*[RED] * 17),
    "too long": looks(*[NOISE] * 16),
    "tokenize": ("/tokenize", {"messages": looks(RED)[1]["messages"]}),
    "placeholder without a picture": says("<image>"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOR_VISION)
def test_answers_about_pictures_are_the_same(vision: Site, name: str):
    """Pictures in the form of each API, counted in usage, and their refusals."""
    check_same(vision, *FOR_VISION[name])


COUNTS = {
    "messages": ("/v1/messages/count_tokens", {"model": VISION, "messages": [{"role": "user", "content": SEEN}]}),
    "input": ("/v1/responses/input_tokens", {"input": [{"role": "user", "content": SHOWN}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_pictures_are_counted_beside_the_engine_alone(vision: Site, name: str):
    """A server over gRPC does not know how many tokens a picture takes, and refuses to count."""
    path, body = COUNTS[name]
    status, counted = vision.ask(vision.local, path, body)
    assert status == 200
    assert counted["input_tokens"] > 30
    status, refusal = vision.ask(vision.remote, path, body)
    assert status == 400
    assert f"{name} with media cannot be counted here" in refusal["error"]["message"]
