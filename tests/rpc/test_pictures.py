"""Pictures through `RpcClient` and `Fleet`: the same tokens as at the server, also when that server is lost."""

import asyncio

import pytest

from tests.busy import until
from tests.contract.engines import local, served
from tests.doubles.fake_engine import make_config
from tests.doubles.other_server import OtherServer
from tests.doubles.pictures import noise, png
from tests.rpc.test_fleet_failover import Cutter, answers_of, fleet_of, look
from weft.core.checks.validate import Limits
from weft.core.errors import BadRequest
from weft.core.values.media import Media, MediaConfig, MediaItem, MediaTensors
from weft.core.values.prompts import Prompt, TextPart, TokensPart
from weft.core.values.types import OutputKind, RequestOptions, SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.client import RpcClient
from weft.rpc.convert.media import to_media, to_media_refs
from weft.rpc.convert.request import to_generation

VISION = {"model": "embedded:tiny-vision", "max_model_len": 512}
PARAMS = SamplingParams(
    seed=3, temperature=0.9, max_tokens=8, ignore_eos=True, output_kind=OutputKind.DELTA
)
TEXT = "<|im_start|>user\n<image>What is it?<|im_end|>\n<|im_start|>assistant\n"


def prompt_of(*items: MediaItem, text: str = TEXT) -> Prompt:
    """A question about these pictures."""
    return Prompt(parts=(TextPart(text),), media=Media(items=list(items)))


def item(seed: int = 1, **fields) -> MediaItem:
    """A picture as bytes, unless `fields` say otherwise."""
    return MediaItem(modality="image", **(fields or {"data": png(noise(seed))}))


async def request_of(client, prompt: Prompt):
    """A checked request."""
    return await client.prepare(prompt, PARAMS, RequestOptions(request_id="r"))


async def tokens_of(client, prompt: Prompt) -> list[int]:
    """The tokens of an answer."""
    answers, _ = await answers_of(client, await request_of(client, prompt))
    return answers[0][1]


def test_everything_about_media_crosses_the_wire():
    """Files, addresses, uuids and the processor's arguments arrive as they were sent."""
    media = Media(
        items=[
            item(url="https://a.example/b.png"),
            item(),
            item(uuid="u"),
            item(data=b"x", uuid="v"),
        ],
        processor_kwargs={"do_image_splitting": False},
    )
    assert to_media(pb.GenerateRequest(media_refs=to_media_refs(media))) == media


@pytest.mark.parametrize("kwargs", [b"[1]", b"{", b"{}" * (1 << 20)], ids=["list", "part", "large"])
def test_arguments_of_the_processor_that_are_no_object_are_refused(kwargs: bytes):
    """The error names the field of the APIs."""
    refs = to_media_refs(Media(items=[item()]))
    refs.weft_processor_kwargs_json = kwargs
    message = pb.GenerateRequest(text="a", media_refs=refs)
    config = MediaConfig(max_items={"image": 1})
    with pytest.raises(BadRequest) as caught:
        to_generation(message, Limits.of(make_config()), config).prompt()
    assert caught.value.parameter == "mm_processor_kwargs"


async def test_a_uuid_stands_for_a_picture_that_the_server_has_seen():
    """A single server knows what it has received before."""
    async with served(**VISION) as target:
        client = await RpcClient.connect(target)
        try:
            first = await tokens_of(client, prompt_of(item(data=png(noise(1)), uuid="u")))
            assert await tokens_of(client, prompt_of(item(uuid="u"))) == first
            with pytest.raises(BadRequest, match="send the picture again"):
                await tokens_of(client, prompt_of(item(uuid="other")))
        finally:
            await client.close()


async def test_what_cannot_be_sent_is_refused_by_name():
    """Tensors have no way through this client."""
    async with served(**VISION) as target:
        client = await RpcClient.connect(target)
        tensors = MediaTensors(modality="image", tensors={}, placeholders=[(0, 1)], hashes=["a"])
        given = Prompt(parts=(TokensPart([5, 6]),), media=Media(tensors=[tensors]))
        try:
            with pytest.raises(BadRequest, match="mm_inputs cannot be sent over gRPC"):
                await request_of(client, given)
        finally:
            await client.close()


async def test_servers_that_are_not_of_weft_get_no_pictures():
    """The error says where they can be sent."""
    async with OtherServer(sees=True).serving() as target:
        client = await RpcClient.connect(target, has_tokenizer=False)
        given = Prompt(parts=(TokensPart([5, 6]),), media=Media(items=[item()]))
        try:
            with pytest.raises(BadRequest, match="use the HTTP port of the server that runs"):
                await client.prepare(
                    given, SamplingParams(detokenize=False), RequestOptions(request_id="r")
                )
        finally:
            await client.close()


async def test_a_request_of_a_lost_server_keeps_its_pictures():
    """The reader gets the same from two servers, wherever the first one ends, as from one."""
    cutter = Cutter()
    async with (
        local(**VISION) as one,
        local(**VISION) as other,
        fleet_of(cutter.wrap(one), cutter.wrap(other)) as fleet,
    ):
        request = await request_of(fleet, prompt_of(item(1), item(2), text=f"<image>{TEXT}"))
        whole, num_outputs = await answers_of(fleet, request)
        assert len(whole[0][1]) == 8
        for place in range(0, num_outputs + 1, 3):
            cutter.places = [place]
            assert (await answers_of(fleet, request))[0] == whole, place
            await look(fleet)
        with pytest.raises(BadRequest, match="uuid without the item itself"):
            await request_of(fleet, prompt_of(item(uuid="u")))


class _Changing(Cutter):
    """Changes a file when the first request begins."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def take_place(self):
        place = super().take_place()
        if place is not None:
            self._path.write_bytes(png(noise(2)))
        return place


async def test_a_request_does_not_continue_with_another_picture(tmp_path):
    """The picture at an address has changed: no server continues the request until the picture is back."""
    path = tmp_path / "a.png"
    path.write_bytes(png(noise(1)))
    cutter, settings = _Changing(path), {**VISION, "allowed_local_media_path": str(tmp_path)}
    async with (
        local(**settings) as one,
        local(**settings) as other,
        fleet_of(cutter.wrap(one), cutter.wrap(other)) as fleet,
    ):
        request = await request_of(fleet, prompt_of(item(url=path.as_uri())))
        whole, _ = await answers_of(fleet, request)
        cutter.places = [3]
        running = asyncio.create_task(answers_of(fleet, request))
        await until(lambda: not all(member.fingerprint for member in fleet._members.all))
        assert len(cutter.requests) == 2
        path.write_bytes(png(noise(1)))
        assert (await running)[0] == whole
