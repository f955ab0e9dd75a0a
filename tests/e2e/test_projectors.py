"""Chats with pictures, from a server of a text model and its projector in GGUF files."""

from dataclasses import replace
from pathlib import Path

import httpx2
import msgspec
import numpy as np
import pytest

from tests.busy import PATIENCE_S
from tests.e2e.test_pictures import CHATS, TEMPLATE, chat, image, save_with, theirs
from tests.model.gguf.projector_files import write_pair
from tests.web.serving import http_serving, serving
from weft.model.open import find_model


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A checkpoint with its processor and tokenizer, and the text model of the same in a file beside its projector."""
    directory = tmp_path_factory.mktemp("pair")
    _, name = save_with("qwen3_vl", theirs(4), directory / "checkpoint")
    model, _ = write_pair(Path(name), directory, template=TEMPLATE)
    return name, str(model)


async def texts(model, bodies, **settings):
    """The answers of a server to chats over HTTP, with the tokens of each prompt."""
    async with (
        serving(model, **CHATS, **settings) as served,
        http_serving(served) as url,
        httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
    ):
        answers = [(await client.post("/v1/chat/completions", json=body)).json() for body in bodies]
    return [
        (one["choices"][0]["message"]["content"], one["usage"]["prompt_tokens"]) for one in answers
    ]


async def test_a_chat_with_pictures_answers_as_with_the_checkpoint(pair):
    """Template, tokens and tower come from the two files: the same tokens, and other ones for other pictures."""
    checkpoint, model = pair
    bodies = [{**chat(*map(image, seeds)), "model": None} for seeds in ((1,), (2, 1))]
    expected = await texts(checkpoint, bodies, template=TEMPLATE)
    got = await texts(model, bodies)
    assert got == expected
    assert got[0][0] != got[1][0]


def test_pictures_are_prepared_as_for_the_checkpoint(pair):
    """Sizes, pixels and tokens are those of the checkpoint's own files, to the precision of numbers in GGUF files."""
    checkpoint, model = (find_model(name).card.media for name in pair)
    assert checkpoint is not None
    assert model is not None
    assert replace(model, settings=checkpoint.settings) == checkpoint
    assert settings_of(model) == settings_of(checkpoint)


def settings_of(card):
    """The settings of pictures, with levels of channels as float32."""
    pixels = card.settings.pixels
    mean, std = (tuple(map(np.float32, levels)) for levels in (pixels.mean, pixels.std))
    rounded = msgspec.structs.replace(pixels, mean=mean, std=std)
    return msgspec.structs.replace(card.settings, pixels=rounded)
