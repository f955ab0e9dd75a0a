"""Every field of every request of `vllm.Inference` is used, or refused by its name."""

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from msgspec import structs

from tests.doubles.fake_engine import make_config
from weft.core.checks.validate import Limits
from weft.core.errors import BadRequest, NotFound, Unsupported
from weft.core.values.media import MediaConfig, MediaItem
from weft.core.values.types import OutputKind, StructuredOutputsParams
from weft.pb import vllm_inference_pb2 as pb
from weft.rpc.convert.inference_request import REFUSED_OF_INFERENCE, Inference, to_inference

CONFIG = make_config()
SEEING = MediaConfig(max_items={"image": 4, "audio": 4, "video": 4})

# Values that are valid where the usual one is not, by field.
VALID: dict[str, Any] = {
    "model": "fake-model",
    "text": "a",
    "top_p": 0.5,
    "min_p": 0.5,
    "json": "{}",
    "structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}',
    "url": "http://a/b.png",
    "data_uri": "data:image/png;base64,",
    "mime_type": "image/png",
    "modality": pb.MODALITY_VIDEO,
    "output_text": False,
    "skip_special_tokens": False,
    "raw_bytes": b"x",
}
USUAL = {
    FieldDescriptor.CPPTYPE_INT32: 2,
    FieldDescriptor.CPPTYPE_INT64: 2,
    FieldDescriptor.CPPTYPE_UINT32: 2,
    FieldDescriptor.CPPTYPE_UINT64: 2,
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_STRING: "x",
}
# Messages inside a request, with the way to one.
INSIDE = {
    "GenerateRequest": lambda request: request,
    "TokenIds": lambda request: request.token_ids,
    "RandomSampling": lambda request: request.sampling,
    "DecodingParameters": lambda request: request.decoding,
    "StoppingCriteria": lambda request: request.stopping,
    "ResponseOptions": lambda request: request.response,
    "KVCacheParameters": lambda request: request.kv,
    "EngineReasoningGate": lambda request: request.engine_reasoning_gate,
    "MediaItem": lambda request: request.media.add(modality=pb.MODALITY_IMAGE, url="http://a/b"),
}
# Messages that are used or refused as a whole, each with the field that holds it.
WHOLE = {
    "StringChoices": "choice",
    "CandidateTokens": "output_candidates",
    "KVHintsEnvelope": "kv_hints",
    "KVHintAction": "kv_hints",
    "PreprocessedMediaFeatures": "features",
}
# The names that differ, and those that are refused for another reason than their value.
REFUSED_AS_WELL = {"watermarking", "output_candidates", "prompt_candidates"}
# A field without an effect, and why.
NO_EFFECT = {
    "mime_type": "the file itself tells its format; a label of another modality is refused, see below",
    "model": "the one model is served; other names are refused, see below",
}


def plain() -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[10, 11, 12]))


def read(message: pb.GenerateRequest, *, is_streaming: bool = True) -> Inference:
    seeing = structs.replace(CONFIG.model_config, media=SEEING)
    return to_inference(message, Limits.of(CONFIG), seeing, is_streaming=is_streaming)


def meant(message: pb.GenerateRequest) -> Any:
    """All that a message says, comparable."""
    asked = read(message)
    return replace(asked, prompt=None), asked.prompt()


def set_field(message: Message, field: FieldDescriptor) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)[2] = 0.5
    elif field.message_type is not None and field.message_type.full_name.endswith("Struct"):
        getattr(message, field.name).update({"do_remote_decode": True})
    elif field.message_type is not None:
        set_message(getattr(message, field.name), field)
    elif field.is_repeated:
        getattr(message, field.name).append(USUAL[field.cpp_type])
    else:
        setattr(message, field.name, VALID.get(field.name, USUAL.get(field.cpp_type)))


# Fields that make a message say something.
SAYING = {
    "ids", "num_sequences", "choices", "bypass_prefix_cache", "top_n", "url", "presence_penalty", "max_new_tokens",
    "prompt_token_ids", "reasoning_ended", "modality", "message_id", "identifier",
}  # fmt: skip


def set_message(value: Any, field: FieldDescriptor) -> None:
    """Something that is valid in a message, or in the first of several."""
    if field.is_repeated:
        value = value.add()
    for inner in field.message_type.fields:
        if inner.name in SAYING:
            set_field(value, inner)


def fates() -> list[Any]:
    return [
        pytest.param(name, field, id=f"{name}.{field.name}")
        for name in INSIDE
        for field in getattr(pb, name).DESCRIPTOR.fields
    ]


@pytest.mark.parametrize(("name", "field"), fates())
def test_every_field_of_a_request_is_used_or_refused(name: str, field: FieldDescriptor):
    """A new field of the protocol fails here until someone decides about it."""
    before, after = plain(), plain()
    INSIDE[name](before)
    set_field(INSIDE[name](after), field)
    try:
        fate = "used" if meant(after) != meant(before) else "without effect"
    except (BadRequest, Unsupported) as error:
        fate = f"refused: {error}"
    listed = REFUSED_OF_INFERENCE.get(f"vllm.{name}", {})
    if field.name in listed or field.name in REFUSED_AS_WELL:
        assert fate.startswith("refused")
        assert field.name in fate
    else:
        assert fate == ("without effect" if field.name in NO_EFFECT else "used")


def test_no_message_of_a_request_is_forgotten():
    """Those that are read field by field, and those that are used or refused as a whole."""
    found, waiting = set(), [pb.GenerateRequest.DESCRIPTOR]
    while waiting:
        kind = waiting.pop()
        if (
            kind.name in found
            or not kind.full_name.startswith("vllm.")
            or kind.GetOptions().map_entry
        ):
            continue
        found.add(kind.name)
        waiting += [field.message_type for field in kind.fields if field.message_type is not None]
    assert found == INSIDE.keys() | WHOLE.keys()


# -- what the values mean ---------------------------------------------------------------------


def test_an_unset_temperature_is_greedy_and_other_unset_numbers_are_the_models():
    """As vLLM's servers read it: the model's generation_config.json decides on all but the temperature."""
    message = plain()
    defaults = {"temperature": 0.6, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.2}
    own = structs.replace(CONFIG.model_config, default_sampling_params=defaults)
    params = to_inference(message, Limits.of(CONFIG), own, is_streaming=False).params
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 7, 0.9)
    assert (params.repetition_penalty, params.max_tokens, params.n) == (1.2, None, 1)
    message.temperature = 0.7
    message.sampling.top_k = 0
    message.sampling.top_p = 1.0
    params = to_inference(message, Limits.of(CONFIG), own, is_streaming=False).params
    assert (params.temperature, params.top_k, params.top_p) == (0.7, 0, 1.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"logprobs": None}),
        ({"output_logprobs": True}, {"logprobs": 0}),
        ({"output_logprobs": True, "output_candidates": {"top_n": 3}}, {"logprobs": 3}),
        ({"output_logprobs": True, "output_candidates": {"all": True}}, {"logprobs": -1}),
        (
            {"output_logprobs": True, "output_candidates": {"token_ids": {"ids": [4, 5]}}},
            {"logprobs": None, "logprob_token_ids": [4, 5]},
        ),
        ({"prompt_logprobs": True, "prompt_candidates": {"top_n": 2}}, {"prompt_logprobs": 2}),
        ({"output_text": False}, {"detokenize": False}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ],
)
def test_the_response_that_is_asked_for(fields: dict[str, Any], expected: dict[str, Any]):
    """Scores, candidates and text."""
    message = plain()
    message.response.CopyFrom(pb.ResponseOptions(**fields))
    params = read(message).params
    assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        ({"json": "{}"}, StructuredOutputsParams(json="{}")),
        ({"regex": "a+"}, StructuredOutputsParams(regex="a+")),
        ({"choice": {"choices": ["a", "b"]}}, StructuredOutputsParams(choice=["a", "b"])),
        ({"grammar": "root ::= x"}, StructuredOutputsParams(grammar="root ::= x")),
        ({"json_object": True}, StructuredOutputsParams(json_object=True)),
        ({"json_object": False}, None),
    ],
)
def test_constraints(decoding: dict[str, Any], expected: StructuredOutputsParams | None):
    """One of each kind."""
    message = plain()
    message.decoding.CopyFrom(pb.DecodingParameters(**decoding))
    assert read(message).params.structured_outputs == expected


def test_a_stream_has_deltas_and_one_answer_comes_whole():
    """The two calls differ in the kind of outputs alone."""
    assert read(plain()).params.output_kind is OutputKind.DELTA
    assert read(plain(), is_streaming=False).params.output_kind is OutputKind.FINAL_ONLY


def test_numbers_of_transfer_parameters_are_whole_again():
    """A `Struct` has doubles only, and routers send the port as text because of that."""
    message = plain()
    given = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_port": "5600"}
    message.kv.kv_transfer_params.update(given)
    found = read(message).params.extra_args
    assert found == {"kv_transfer_params": {**given, "remote_port": 5600}}
    assert [type(one) for one in found["kv_transfer_params"]["remote_block_ids"][0]] == [int, int]


def test_media_come_by_address_or_as_bytes():
    """In order, each with its name."""
    message = plain()
    message.media.add(modality=pb.MODALITY_IMAGE, raw_bytes=b"png", uuid="u", mime_type="image/png")
    message.media.add(modality=pb.MODALITY_AUDIO, data_uri="data:audio/wav;base64,AAAA")
    message.media.add(modality=pb.MODALITY_VIDEO, url="https://a/b.mp4")
    message.kv.cache_salt = "s"
    prompt = read(message).prompt()
    assert prompt.cache_salt == "s"
    assert prompt.media.items == [
        MediaItem(modality="image", data=b"png", uuid="u"),
        MediaItem(modality="audio", url="data:audio/wav;base64,AAAA"),
        MediaItem(modality="video", url="https://a/b.mp4"),
    ]


def bad(**fields: Any) -> pb.GenerateRequest:
    message = plain()
    message.MergeFrom(pb.GenerateRequest(**fields))
    return message


@pytest.mark.parametrize(
    ("message", "name", "words"),
    [
        (pb.GenerateRequest(), "prompt", "set text or token_ids"),
        (pb.GenerateRequest(text=""), "text", "must not be empty"),
        (bad(watermarking=True), "watermarking", "absent or false"),
        (bad(session_id="a"), "session_id", "must be absent"),
        (bad(kv_hints={"message_id": "a"}), "kv_hints", "must be absent"),
        (bad(response={"output_candidates": {"top_n": 1}}), "output_candidates", "output_logprobs"),
        (
            bad(response={"prompt_logprobs": True, "prompt_candidates": {"token_ids": {"ids": [1]}}}),
            "prompt_candidates",
            "top_n or all",
        ),
        (bad(media=[{"url": "http://a"}]), "media", "media[0].modality"),
        (bad(media=[{"modality": 1}]), "media", "media[0] has no source"),
        (bad(media=[{"modality": 1, "url": "file:///etc/passwd"}]), "media", "http: or https:"),
        (bad(media=[{"modality": 1, "data_uri": "http://a"}]), "media", "begin with data:"),
        (
            bad(media=[{"modality": 1, "url": "http://a", "mime_type": "audio/wav"}]),
            "media",
            "must begin with image/",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_its_name(message, name: str, words: str):
    """With what is allowed."""
    with pytest.raises(BadRequest) as caught:
        read(message).prompt()
    assert caught.value.parameter == name
    assert words in str(caught.value)


def test_another_model_is_not_found():
    """Adapters have a field of their own."""
    with pytest.raises(NotFound, match="does not exist"):
        read(bad(model="another"))


def test_several_answers_need_a_stream():
    """The response of the other call has room for one."""
    message = bad(sampling={"num_sequences": 2})
    assert read(message).params.n == 2
    with pytest.raises(BadRequest, match="num_sequences must be 1 for Generate"):
        read(message, is_streaming=False)


def test_a_model_of_text_takes_no_media():
    """By the field's name."""
    message = bad(media=[{"modality": 1, "url": "http://a"}])
    with pytest.raises(BadRequest, match="media: this model reads text only"):
        to_inference(message, Limits.of(CONFIG), CONFIG.model_config, is_streaming=True)
