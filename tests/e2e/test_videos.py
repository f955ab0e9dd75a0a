"""Videos from a request to an answer, on small random models of Qwen's families."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from tests.doubles.videos import video, video_url
from tests.e2e.test_pictures import (
    CHATS,
    END,
    GREEDY,
    IMAGE,
    SETTINGS,
    START,
    TEMPLATE,
    VIDEO,
    chat,
    image,
    save_with,
    theirs,
    tokens_of,
)
from tests.web.openai.calls import CHAT, answer
from tests.web.serving import serving
from weft.core.errors import BadRequest
from weft.core.values.types import RequestOptions
from weft.media.processors.patches import to_patches
from weft.media.processors.video_processor import VideoProcessor
from weft.model.open import open_model
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import to_generation

TYPES = {
    "qwen3_vl": "Qwen3VLVideoProcessor",
    "qwen2_5_vl": "Qwen2VLVideoProcessor",
    "qwen2_vl": "Qwen2VLVideoProcessor",
}
TEXT = "What is it? <|vision_start|><|video_pad|><|vision_end|> Say it."


@pytest.fixture(scope="module", params=TYPES)
def saved(request, tmp_path_factory):
    """A model of transformers, and the directory that it is saved in with settings for small videos."""
    directory = tmp_path_factory.mktemp(request.param)
    model, name = save_with(request.param, theirs(4), directory)
    path = Path(directory, "video_preprocessor_config.json")
    size = {"shortest_edge": 64, "longest_edge": 3000 if request.param == "qwen3_vl" else 600}
    path.write_text(json.dumps({"video_processor_type": TYPES[request.param], "size": size}))
    return model, name


def prompt(data: bytes) -> dict:
    """A prompt with a video for Python programs."""
    return {"prompt": TEXT, "multi_modal_data": {"video": data}}


def expected(model, name: str, token_ids: list[int], data: bytes) -> list[int]:
    """Greedy tokens of transformers for patches that tests/media holds to its processors."""
    settings = open_model(name).card.media.videos
    item = VideoProcessor(settings, settings.tokens, list).prepare(data, "hash")
    patches, grids = to_patches(item.tiles, settings.pixels)
    grid = [sum(grid[0] for grid in grids), *grids[0][1:]]
    tensors = {
        "pixel_values_videos": torch.from_numpy(patches),
        "video_grid_thw": torch.tensor([grid]),
    }
    if settings.positions_per_second:
        seconds = np.float32(item.tiles[0].time_step / settings.positions_per_second)
        tensors["second_per_grid_ts"] = torch.tensor([seconds])
    ids, grids = list(token_ids), {k: v for k, v in tensors.items() if "pixel" not in k}
    prompt_ids = torch.tensor([ids])
    places, offset = model.model.get_rope_index(
        prompt_ids, mm_token_type_ids=2 * (prompt_ids == VIDEO).int(), **grids
    )
    for number in range(GREEDY.max_tokens):
        # As in generation with a cache: answers go on behind the last position of the prompt.
        later = torch.arange(number) + len(token_ids) + offset.item()
        tensor = torch.tensor([ids])
        with torch.no_grad():
            logits = model(
                input_ids=tensor,
                position_ids=torch.cat([places, later.expand(3, 1, -1)], dim=-1),
                use_cache=False,
                mm_token_type_ids=2 * (tensor == VIDEO).int(),
                **tensors,
            ).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(token_ids) :]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", ["native", "reference"])
def test_greedy_tokens_are_those_of_transformers(saved, compute):
    """Frames, tower, positions with time, or times as texts, and text model together."""
    model, name = saved
    data = video(12, rate=3)
    with weft.LLM(name, compute=compute, **SETTINGS) as llm:
        [output] = llm.generate([prompt(data)], GREEDY, use_tqdm=False)
    ids = output.prompt_token_ids
    assert output.outputs[0].token_ids == expected(model, name, ids, data)
    num_patches = 4
    is_timed = "qwen3_vl" in model.config.model_type
    assert ids.count(START) == ids.count(END) == (num_patches if is_timed else 1)
    assert ids.count(VIDEO) % num_patches == 0


def test_an_answer_is_the_same_in_chunks_in_a_batch_and_from_the_cache(saved):
    """A video is computed once, and how steps are cut changes no token."""
    _, name = saved
    first, other = prompt(video(12, rate=3)), prompt(video(9, rate=3))
    with weft.LLM(name, **SETTINGS) as llm:
        alone = [tokens_of(llm, one)[0] for one in (first, other)]
        assert tokens_of(llm, first) == alone[:1]
    with weft.LLM(name, **{**SETTINGS, "max_num_batched_tokens": 24}) as llm:
        assert tokens_of(llm, first, other, first) == [*alone, alone[0]]


def part(data: bytes) -> dict:
    """A part of a message of vLLM's form."""
    return {"type": "video_url", "video_url": {"url": video_url(data)}}


async def test_chats_and_grpc_take_videos_beside_pictures(saved):
    """A picture and a video in one message, the same in both protocols; usage counts their tokens."""
    data = video(12, rate=3)
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        body = await answer(served, CHAT, chat(image(1), part(data)))
        alone = await answer(served, CHAT, chat(image(1)))
        refs = [
            pb.MediaRef(modality=common_pb2.IMAGE, url=image(1)["image_url"]["url"]),
            pb.MediaRef(modality=common_pb2.VIDEO, url=video_url(data)),
        ]
        message = pb.GenerateRequest(
            text="What is it? <|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>",
            media_refs=pb.MediaRefs(items=refs),
            sampling_params=pb.SamplingParams(temperature=0.0, max_tokens=8),
        )
        client = served.client
        call = to_generation(message, client.info.limits, client.model_config.media)
        request = await client.prepare(call.prompt, call.params, RequestOptions(request_id="g"))
        token_ids = [t async for out in client.run(request) for t in out.outputs[0].token_ids]
        text = served.tokenizer.decode(token_ids)
    assert text == body["choices"][0]["message"]["content"]
    num_tokens = [one["usage"]["prompt_tokens"] for one in (body, alone)]
    assert num_tokens[0] - num_tokens[1] > request.prompt_token_ids.count(VIDEO) > 0
    assert request.prompt_token_ids.count(IMAGE) == 15


async def test_bad_videos_are_refused_in_a_sentence(saved):
    """The caller's error, before anything runs; other requests go on."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        for data, says in ((b"\0\0\0\0ftyp", "cannot be decoded"), (b"no", "not a video in one")):
            with pytest.raises(BadRequest, match=says):
                await answer(served, CHAT, chat(image(2), part(data)))
        assert served.client.num_active_requests == 0
        await answer(served, CHAT, chat(part(video(12, rate=3)), mm_processor_kwargs={"fps": 1}))
