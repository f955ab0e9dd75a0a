"""Pictures from a request to an answer, on small random models of every family."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import weft
from tests.compute.vision_families import save_vision_model
from tests.doubles.pictures import data_url, noise, png
from tests.web.anthropic.calls import create
from tests.web.openai.calls import CHAT, answer
from tests.web.serving import serving
from weft.core.errors import BadRequest
from weft.core.tenant_client import as_tenant
from weft.core.tenants import Tenant, TenantRules
from weft.core.values.pictures import ItemTokens
from weft.core.values.types import RequestOptions, SamplingParams
from weft.media.processors.patches import to_patches
from weft.media.processors.picture_processor import PictureProcessor
from weft.model.picture_settings import TowerSizes, read_picture_settings
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import to_generation

IMAGE, START, END, VIDEO = 300, 301, 302, 303
TOKENS = {
    IMAGE: "<|image_pad|>",
    START: "<|vision_start|>",
    END: "<|vision_end|>",
    VIDEO: "<|video_pad|>",
}
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|vision_start|><|{{ part['type'] }}_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SETTINGS = {"max_model_len": 512, "block_size": 16, "num_gpu_blocks_override": 256}
CHATS = {"max_model_len": 512, "mm_processor_cache_gb": 0.1}


def theirs(patch_size: int) -> Qwen2VLImageProcessorPil:
    """The processor of transformers, for patches of few pixels."""
    return Qwen2VLImageProcessorPil(patch_size=patch_size, min_pixels=64, max_pixels=2304)


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl"])
def saved(request, tmp_path_factory):
    """A model of transformers, and the directory that it is saved in with its processor and a tokenizer."""
    return save_with(request.param, theirs(4), tmp_path_factory.mktemp(request.param))


def save_with(family: str, processor, directory: Path):
    """A model of transformers, and the directory that it is saved in with its processor and a tokenizer."""
    model, name = save_vision_model(family, directory)
    processor.save_pretrained(directory)
    path = Path(directory, "tokenizer.json")
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    for token_id, text in TOKENS.items():
        del vocab[f"Ġw{token_id}"]
        vocab[text] = token_id
        tokenizer["added_tokens"].append(
            {**tokenizer["added_tokens"][0], "id": token_id, "content": text}
        )
    path.write_text(json.dumps(tokenizer))
    return model, name


def prompt(*seeds: int, before: str = "What is there? ") -> dict:
    """A prompt of texts and pictures for Python programs."""
    text = before + " and ".join("<|vision_start|><|image_pad|><|vision_end|>" for _ in seeds)
    return {"prompt": f"{text} Say it.", "multi_modal_data": {"image": [noise(s) for s in seeds]}}


def expected(model, token_ids: list[int], *seeds: int) -> list[int]:
    """Greedy tokens of transformers, with its own processor."""
    inputs = theirs(4)([noise(seed) for seed in seeds], return_tensors="np")
    tensors = {name: torch.tensor(values) for name, values in inputs.items()}
    return greedy(model, token_ids, "mm_token_type_ids", tensors)


def greedy(model, token_ids: list[int], types: str | None, tensors: dict) -> list[int]:
    """Greedy tokens of transformers; its argument `types` gets which tokens are rows of a picture."""
    ids = list(token_ids)
    for _ in range(GREEDY.max_tokens):
        tensor = torch.tensor([ids])
        marks = {} if types is None else {types: (tensor == IMAGE).int()}
        with torch.no_grad():
            logits = model(input_ids=tensor, use_cache=False, **tensors, **marks).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(token_ids) :]


def tokens_of(llm, *prompts: dict) -> list[list[int]]:
    """The answer to each prompt."""
    outputs = llm.generate(list(prompts), GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", ["native", "reference"])
def test_greedy_tokens_are_those_of_transformers(saved, compute):
    """From files of pictures to tokens: processor, tower, positions and text model together."""
    model, name = saved
    with weft.LLM(name, compute=compute, **SETTINGS) as llm:
        [output] = llm.generate([prompt(1, 2)], GREEDY, use_tqdm=False)
        assert output.prompt_token_ids.count(IMAGE) == 2 * 15
        assert output.outputs[0].token_ids == expected(model, output.prompt_token_ids, 1, 2)


class Lfm2Processor:
    """Ours for LFM2-VL: that of transformers needs torchvision, and tests/media compares both."""

    def save_pretrained(self, directory: Path) -> None:
        """Writes settings with small tiles."""
        settings = {
            "image_processor_type": "Lfm2VlImageProcessor",
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "encoder_patch_size": 4,
            "tile_size": 16,
            "min_image_tokens": 2,
            "max_image_tokens": 6,
        }
        Path(directory, "preprocessor_config.json").write_text(json.dumps(settings))
        found = read_picture_settings(directory, TowerSizes(4, 2))
        self._ours = PictureProcessor(found, ItemTokens(anchor=IMAGE, placeholder=IMAGE), list)

    def __call__(self, pictures: list, return_tensors: str) -> dict[str, np.ndarray]:
        """The tiles as rows of patches, filled up to one length."""
        assert return_tensors == "np"
        tiles = [tile for one in pictures for tile in self._ours.prepare(png(one), "").tiles]
        pixels = msgspec.structs.replace(self._ours.settings.pixels, merge_size=1)
        shapes = np.array([[tile.height // 4, tile.width // 4] for tile in tiles])
        values = np.zeros((len(tiles), shapes.prod(axis=1).max(), 48), np.float32)
        mask = np.zeros(values.shape[:2], np.int32)
        for place, tile in enumerate(tiles):
            patches, _ = to_patches([tile], pixels)
            turned = patches.reshape(-1, 3, 4, 4).transpose(0, 2, 3, 1)
            values[place, : len(patches)] = turned.reshape(-1, 48)
            mask[place, : len(patches)] = 1
        return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}


FAMILIES = {
    "gemma3": (
        Gemma3ImageProcessorPil(
            size={"height": 24, "width": 24},
            do_pan_and_scan=True,
            pan_and_scan_min_crop_size=16,
            pan_and_scan_max_num_crops=4,
            pan_and_scan_min_ratio_to_activate=1.2,
        ),
        "<|vision_start|>",
        "token_type_ids",
    ),
    "idefics3": (
        Idefics3ImageProcessorPil(size={"longest_edge": 48}, max_image_size={"longest_edge": 24}),
        "<|image_pad|>",
        None,
    ),
    "smolvlm": (
        SmolVLMImageProcessorPil(size={"longest_edge": 36}, max_image_size={"longest_edge": 36}),
        "<|image_pad|>",
        None,
    ),
    "qwen3_5": (theirs(4), "<|vision_start|><|image_pad|><|vision_end|>", "mm_token_type_ids"),
    "llava with Pixtral's tower": (
        PixtralImageProcessorPil(size={"longest_edge": 32}, patch_size=4),
        "<|image_pad|>",
        None,
    ),
    "lfm2_vl": (Lfm2Processor(), "<|image_pad|>", None),
}
# Of Pixtral's processor: the tokens after a line, and after a picture.
MARKS = {"image_break_token": TOKENS[START], "image_end_token": TOKENS[END]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("budget", [512, 24])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_answer_as_in_transformers(family, budget, tmp_path):
    """Squares whose rows see each other, tiles, lines with marks, and layers that keep states; whole and in chunks."""
    processor, anchor, types = FAMILIES[family]
    model, name = save_with(family, processor, tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(MARKS))
    given = {
        "prompt": f"What is\n{anchor}\n? Say it.",
        "multi_modal_data": {"image": noise(1)},
    }
    with weft.LLM(name, **SETTINGS, max_num_batched_tokens=budget) as llm:
        [output] = llm.generate([given], GREEDY, use_tqdm=False)
        assert tokens_of(llm, given, given) == [output.outputs[0].token_ids] * 2
    made = processor([noise(1)], return_tensors="np")
    tensors = {
        key: torch.tensor(made[key])
        for key in (
            "pixel_values",
            "pixel_attention_mask",
            "image_sizes",
            "image_grid_thw",
            "spatial_shapes",
        )
        if key in made
    }
    assert output.outputs[0].token_ids == greedy(model, output.prompt_token_ids, types, tensors)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16},
        {
            "enable_prefix_caching": False,
            "max_num_batched_tokens": 40,
            "num_gpu_blocks_override": 34,
        },
        {"mm_processor_cache_gb": 0.0},
        {"data_parallel_size": 2},
    ],
)
def test_an_answer_is_the_same_alone_batched_chunked_preempted_and_cached(saved, settings):
    """The way of a request through the engine changes no token."""
    _, name = saved
    with weft.LLM(name, **SETTINGS) as llm:
        alone = [tokens_of(llm, prompt(*seeds))[0] for seeds in ((1, 2), (3,), (2, 1))]
        again = tokens_of(llm, prompt(1, 2))
    assert again == alone[:1]
    assert len({tuple(tokens) for tokens in alone}) == 3
    with weft.LLM(name, **{**SETTINGS, **settings}) as llm:
        batch = tokens_of(llm, prompt(1, 2), prompt(3), prompt(2, 1), prompt(1, 2), prompt(3))
    assert batch == [*alone, *alone[:2]]


def test_text_before_a_picture_and_the_same_picture_are_cached(saved):
    """The second request begins behind the picture; another picture shares the text before it alone."""
    _, name = saved
    before = "A text of more than one block. " * 3
    with weft.LLM(name, **SETTINGS) as llm:

        def cached(seed: int) -> int:
            [output] = llm.generate([prompt(seed, before=before)], GREEDY, use_tqdm=False)
            return output.num_cached_tokens

        first, again, other = cached(1), cached(1), cached(2)
    num_before = len(before) // 16 * 16
    assert first == 0
    assert again > len(before) + 15
    assert other == num_before


def chat(*parts: dict, **fields) -> dict:
    """A body of one message."""
    message = {"role": "user", "content": [{"type": "text", "text": "What is it? "}, *parts]}
    return {"messages": [message], "max_tokens": 8, "temperature": 0, **fields}


def image(seed: int, **size: int) -> dict:
    """A part of OpenAI's messages."""
    return {"type": "image_url", "image_url": {"url": data_url(noise(seed, **size))}}


async def test_every_api_answers_pictures_alike(saved):
    """Chat and Anthropic's messages give the same text; usage counts the tokens of pictures."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        body = chat(image(1), image(2))
        first = await answer(served, CHAT, body)
        other = await answer(served, CHAT, chat(image(2), image(1)))
        source = {"type": "base64", "media_type": "image/png"}
        parts = [
            {"type": "image", "source": {**source, "data": data_url(noise(seed)).partition(",")[2]}}
            for seed in (1, 2)
        ]
        texts = [{"type": "text", "text": "What is it? "}]
        messages = [{"role": "user", "content": [*texts, *parts]}]
        message = await create(served, messages=messages, max_tokens=8, temperature=0)
    assert first["usage"]["prompt_tokens"] == 12 + 2 * 17
    text = first["choices"][0]["message"]["content"]
    assert text != other["choices"][0]["message"]["content"]
    assert message["content"][0]["text"] == text
    assert (
        message["usage"]["input_tokens"] + message["usage"].get("cache_read_input_tokens", 0) == 46
    )


async def test_grpc_takes_pictures_by_address(saved):
    """`media_refs` stand at the anchors of the text, and the model says that it sees."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        body = await answer(served, CHAT, chat(image(1)))
        ref = pb.MediaRef(modality=common_pb2.IMAGE, url=data_url(noise(1)))
        message = pb.GenerateRequest(
            text="What is it? <|vision_start|><|image_pad|><|vision_end|>",
            media_refs=pb.MediaRefs(items=[ref]),
            sampling_params=pb.SamplingParams(temperature=0.0, max_tokens=8),
        )
        client = served.client
        call = to_generation(message, client.info.limits, client.model_config.media)
        request = await client.prepare(call.prompt, call.params, RequestOptions(request_id="g"))
        token_ids = [t async for out in client.run(request) for t in out.outputs[0].token_ids]
        assert client.model_config.is_multimodal_model
        text = served.tokenizer.decode(token_ids)
    assert text == body["choices"][0]["message"]["content"]


async def test_a_known_picture_is_named_by_its_uuid(saved):
    """A uuid alone stands for the picture that came with it, until the caches are reset."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        first = await answer(served, CHAT, chat({**image(1), "uuid": "one"}))
        known = {"type": "image_url", "image_url": None, "uuid": "one"}
        again = await answer(served, CHAT, chat(known))
        assert again["choices"][0]["message"] == first["choices"][0]["message"]
        await served.client.reset_encoder_cache()
        await served.client.reset_mm_cache()
        with pytest.raises(BadRequest, match="send the picture again"):
            await answer(served, CHAT, chat(known))


async def test_a_uuid_does_not_replace_a_picture_that_is_sent(saved):
    """Whoever sent another picture with this uuid before; alone, it stands for the last one."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        plain = await answer(served, CHAT, chat(image(2)))
        await answer(served, CHAT, chat({**image(1), "uuid": "one"}))
        mine = await answer(served, CHAT, chat({**image(2), "uuid": "one"}))
        known = {"type": "image_url", "image_url": None, "uuid": "one"}
        alone = await answer(served, CHAT, chat(known))
        both = await answer(
            served, CHAT, chat({**image(1), "uuid": "two"}, {**known, "uuid": "two"})
        )
    for made in (mine, alone):
        assert made["choices"][0]["message"] == plain["choices"][0]["message"]
    assert both["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


def seen_by(served, tenant: str, *, salts: bool = False):
    """The server as callers with a key of this tenant find it."""
    rules = Tenant(TenantRules(name=tenant))
    client = as_tenant(served.client, rules, salts=salts, hides_cached_tokens=False)
    return replace(served, client=client)


async def test_uuids_of_tenants_and_salts_are_apart(saved):
    """A uuid stands for no picture of another tenant, nor for one that came with another cache salt."""
    known = {"type": "image_url", "image_url": None, "uuid": "one"}
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        ours, theirs = seen_by(served, "ours"), seen_by(served, "theirs")
        first = await answer(ours, CHAT, chat({**image(1), "uuid": "one"}))
        for caller, salt in ((theirs, None), (served, None), (ours, "salt")):
            with pytest.raises(BadRequest, match=r"uuid of image 1: .* send the picture again"):
                await answer(caller, CHAT, chat(known, cache_salt=salt))
        for caller, salt in ((theirs, None), (served, None), (ours, "salt")):
            await answer(caller, CHAT, chat({**image(2), "uuid": "one"}, cache_salt=salt))
        again = await answer(ours, CHAT, chat(known))
    assert again["choices"][0]["message"] == first["choices"][0]["message"]


async def test_callers_with_salts_share_no_results_of_pictures(saved):
    """Response times tell nobody whether another tenant, or another salt, has sent the same picture."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        callers = [
            (served, {}),
            (seen_by(served, "a"), {}),
            (seen_by(served, "a", salts=True), {}),
            (seen_by(served, "b", salts=True), {}),
            (served, {"cache_salt": "a"}),
            (served, {"cache_salt": "b"}),
        ]
        hashes = []
        for caller, fields in callers:
            given = {**prompt(1), **fields}
            request = await caller.client.prepare(given, GREEDY, RequestOptions(request_id="r"))
            hashes.append(request.items[0].hash)
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 5


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            "not a picture in",
        ),
        (image(1, width=2001, height=4), "200 times the other"),
        (
            {"type": "image_url", "image_url": {"url": "http://host/i.png"}},
            "is not among the hosts",
        ),
        ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}, "takes none"),
        ({"type": "text", "text": "<|image_pad|>"}, "2 placeholder tokens 300"),
    ],
)
async def test_bad_pictures_are_refused_in_a_sentence(saved, part, message):
    """The caller's error, before anything runs; other requests go on."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        with pytest.raises(BadRequest, match=message):
            await answer(served, CHAT, chat(image(2), part))
        assert served.client.num_active_requests == 0
        await answer(served, CHAT, chat(image(2)))


async def test_arguments_of_the_processor_change_the_size(saved):
    """`mm_processor_kwargs` bound the pixels of a picture, within what the model's files allow."""
    async with serving(saved[1], template=TEMPLATE, **CHATS) as served:
        small = await answer(served, CHAT, chat(image(1), mm_processor_kwargs={"max_pixels": 256}))
        assert small["usage"]["prompt_tokens"] < 12 + 17
        with pytest.raises(BadRequest, match="allows min_pixels and max_pixels"):
            await answer(served, CHAT, chat(image(1), mm_processor_kwargs={"fps": 1}))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative"),
        ({"limit_mm_per_prompt": {"image": 0}}, "takes none"),
        ({"limit_mm_per_prompt": {"image": 1}}, "at most 1 may be given in one prompt, got 2"),
    ],
)
async def test_an_engine_that_takes_no_pictures_says_why(saved, settings, reason):
    """What does not go with pictures refuses them by name, and answers texts."""
    async with serving(saved[1], template=TEMPLATE, **{**CHATS, **settings}) as served:
        with pytest.raises(BadRequest, match=reason):
            await answer(served, CHAT, chat(image(1), image(2)))
        await answer(served, CHAT, chat())
