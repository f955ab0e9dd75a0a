"""Every field of every request is used or refused by name."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.doubles.fake_engine import FakeEngine, make_config
from tests.rpc.calls import PROMPT, Understood, request, understood
from weft.core.checks.validate import Limits
from weft.core.errors import BadRequest
from weft.core.values.media import MediaConfig, MediaItem
from weft.core.values.types import (
    OutputKind,
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import check_carried, to_flush_timeout, to_generation, to_num_steps
from weft.rpc.convert.request import to_message as to_wire
from weft.rpc.methods import METHODS

LIMITS = Limits.of(make_config())

# A value for each kind of field that differs from what is meant when the field is unset.
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: 2,
    FieldDescriptor.CPPTYPE_INT64: 2,
    FieldDescriptor.CPPTYPE_UINT32: 2,
    FieldDescriptor.CPPTYPE_UINT64: 2,
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_STRING: "x",
}


def set_field(message: Message, field: FieldDescriptor) -> None:
    """Give one field a value that is not its default."""
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        getattr(message, field.name)[2] = 0.5
    elif field.is_repeated and field.message_type is not None:
        getattr(message, field.name).add()
    elif field.is_repeated:
        getattr(message, field.name).append(_SCALARS[field.cpp_type])
    elif field.name == "choice":
        message.choice.choices.append("x")
    elif field.name == "weft_resumption":
        message.weft_resumption.MergeFrom(pb.WeftResumption(number=1, num_losses=1))
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _VALID.get(field.name, _SCALARS[field.cpp_type]))


def convert(message: pb.GenerateRequest) -> Understood:
    return understood(message, data_parallel_size=4)


def fields_of(message_type: type[Message]) -> list[Any]:
    return [pytest.param(field, id=field.name) for field in message_type.DESCRIPTOR.fields]


def used_or_refused(message: pb.GenerateRequest) -> str:
    """What became of the field that was set."""
    try:
        return "used" if convert(message) != convert(request()) else "ignored"
    except BadRequest as error:
        return f"{error.parameter} refused: {error}"


# A schema that says as little as a string can.
_VALID = {
    "json_schema": "{}",
    "kv_transfer_params_json": '{"do_remote_decode": true}',
    "structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}',
}


@pytest.mark.parametrize("field", fields_of(pb.SamplingParams))
def test_every_sampling_parameter_is_used_or_refused(field: FieldDescriptor):
    """A new field of the protocol fails here until someone decides about it."""
    message = request(max_tokens=3)
    set_field(message.sampling_params, field)

    assert used_or_refused(message) == "used"


@pytest.mark.parametrize("field", fields_of(pb.GenerateRequest))
def test_every_field_of_a_request_is_used_or_refused(field: FieldDescriptor):
    """The same for the request around the parameters."""
    message = request(max_tokens=3)
    set_field(message, field)
    message.sampling_params.n = 2 if field.name == "sampling_params" else 0
    if field.name in ("media_refs", "mm_inputs", "extra_mm_inputs"):
        refusal = f"{field.name} refused: {field.name}: this model reads text only"
        assert used_or_refused(message) == refusal
        return
    if field.name.startswith("kv_transfer_params"):  # this engine takes no part in it
        assert "kv_transfer_params refused" in used_or_refused(message)
        return
    if field.name == "tokenized":
        message.tokenized.input_ids.append(1)

    assert used_or_refused(message) == "used"


@pytest.mark.parametrize("field", fields_of(pb.TokenizedInput))
def test_every_field_of_tokenized_input_is_used(field: FieldDescriptor):
    """Also the text that only labels."""
    message = request(max_tokens=3)
    set_field(message.tokenized, field)

    assert used_or_refused(message) == "used"


@pytest.mark.parametrize("field", fields_of(common_pb2.StartProfileRequest))
def test_a_profile_takes_a_number_of_steps_and_nothing_else(field: FieldDescriptor):
    """Where traces go and what is in them is not the caller's to choose."""
    message = common_pb2.StartProfileRequest()
    assert to_num_steps(message) is None
    set_field(message, field)

    if field.name == "num_steps":
        assert to_num_steps(message) == message.num_steps
        return
    with pytest.raises(BadRequest, match=f"{field.name} is not supported yet"):
        to_num_steps(message)


def test_no_other_request_has_fields_that_are_not_tested():
    """What the tests above and those of the single calls cover; a new field must be added there."""
    names = {
        method.request_type.DESCRIPTOR.name: [f.name for f in method.request_type.DESCRIPTOR.fields]
        for method in METHODS.values()
    }

    del names["GenerateRequest"], names["StartProfileRequest"]
    assert names == {
        "EmbedRequest": ["request_id", "tokenized"],
        "AbortRequest": ["request_ids"],
        "FlushCacheRequest": ["timeout_s"],
        "GetLoadsRequest": ["dp_rank", "include"],
        "SubscribeKvEventsRequest": ["start_sequence_number", "load_records_before_first_batch"],
        "HealthCheckRequest": [],
        "StopProfileRequest": [],
        "GetModelInfoRequest": [],
        "GetServerInfoRequest": ["weft_with_fingerprint"],
        "GetTokenizerRequest": [],
    }


def test_unset_numbers_take_their_neutral_value():
    """proto3 cannot tell 0 from unset; where 0 makes no sense it means "the default"."""
    message = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=PROMPT))

    params = convert(message).params

    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.repetition_penalty, params.n, params.max_tokens) == (1.0, 1, None)
    assert (params.logprobs, params.prompt_logprobs, params.seed) == (None, None, None)
    assert (params.presence_penalty, params.frequency_penalty) == (0.0, 0.0)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (None, None, None)
    assert params.truncate_prompt_tokens is None


def test_zero_that_was_set_is_not_unset():
    """Where presence travels, 0 is a value: greedy, no alternatives, seed 0."""
    params = convert(request(temperature=0.0, logprobs=0, prompt_logprobs=0, seed=0)).params

    assert (params.temperature, params.logprobs, params.prompt_logprobs, params.seed) == (
        0,
        0,
        0,
        0,
    )


def test_a_decimal_means_the_same_as_over_http():
    """Floats travel in 32 bits; the shortest decimal with the same bits is what was meant."""
    params = convert(request(temperature=0.7, top_p=0.9, min_p=0.05, logit_bias={5: -1.3})).params

    assert (params.temperature, params.top_p, params.min_p) == (0.7, 0.9, 0.05)
    assert params.logit_bias == {5: -1.3}


def test_streaming_chooses_how_outputs_are_made():
    """Deltas for a stream, one output at the end otherwise."""
    kinds = [convert(request(stream=stream)).params.output_kind for stream in (True, False)]

    assert kinds == [OutputKind.DELTA, OutputKind.FINAL_ONLY]


def test_parameters_are_checked_before_the_input():
    """An empty request with a bad parameter complains of the parameter: clients test for it."""
    message = pb.GenerateRequest(sampling_params=pb.SamplingParams(top_p=-33))

    with pytest.raises(BadRequest, match=r"top_p must be in \(0, 1\], got -33\.0"):
        convert(message)


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf"), 1e9])
def test_flush_timeout_must_be_a_sane_number(timeout_s: float):
    """Nothing waits for ever."""
    with pytest.raises(BadRequest, match="timeout_s must be in"):
        to_flush_timeout(common_pb2.FlushCacheRequest(timeout_s=timeout_s))


def test_false_json_object_is_refused():
    """A member of the oneof was chosen: as over HTTP, one that asks for nothing is a mistake, not a choice."""
    with pytest.raises(BadRequest, match="json_object must be true"):
        convert(request(json_object=False))


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"json_schema": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "[a-z]+"}, {"regex": "[a-z]+"}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"choice": pb.ChoiceConstraint(choices=["a", "b"])}, {"choice": ["a", "b"]}),
    ],
)
def test_a_constraint_means_the_same_in_both_directions(
    fields: dict[str, Any], asked: dict[str, Any]
):
    """From the wire, and to it."""
    params = convert(request(**fields)).params

    assert params.structured_outputs == StructuredOutputsParams(**asked)
    message = to_wire(params)
    [(name, value)] = fields.items()
    assert (message.WhichOneof("constraint"), getattr(message, name)) == (name, value)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"json_schema": ""}, "json"),
        ({"json_schema": "{"}, "json"),
        ({"regex": ""}, "regex"),
        ({"grammar": ""}, "grammar"),
        ({"structural_tag": ""}, "structural_tag"),
        ({"choice": pb.ChoiceConstraint()}, "choice"),
        ({"choice": pb.ChoiceConstraint(choices=["a"] * 100_000)}, "choice"),
        ({"choice": pb.ChoiceConstraint(choices=[""])}, "choice"),
    ],
)
def test_a_constraint_that_is_set_and_empty_is_refused(fields: dict[str, Any], name: str):
    """It travels, so it was meant."""
    with pytest.raises(BadRequest) as caught:
        convert(request(**fields))
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad_words", ["x"]),
        ("logprob_token_ids", [1]),
        ("stream_interval", 2),
        ("thinking_token_budget", 0),
        ("repetition_detection", RepetitionDetectionParams(max_pattern_size=2, min_count=2)),
        ("whitespace_pattern", " ?"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_by_the_client(name: str, value: object):
    """By name, before anything is sent."""
    if name == "whitespace_pattern":
        asked = StructuredOutputsParams(json_object=True, whitespace_pattern=" ?")
        params = SamplingParams(structured_outputs=asked)
    else:
        params = SamplingParams(**{name: value})
    with pytest.raises(BadRequest, match=name):
        check_carried(params)


def test_fake_engine_has_the_limits_tested_here():
    """The limits above are those of the engine that the other tests use."""
    assert FakeEngine().info.limits == LIMITS


def test_media_are_items_by_address():
    """Where a model takes some, in the order of their anchors; whatever else they would be is refused."""
    message = request(max_tokens=3)
    for modality, url in ((common_pb2.IMAGE, "data:a"), (common_pb2.AUDIO, "http://b/")):
        message.media_refs.items.add(modality=modality, url=url)
    media = MediaConfig(max_items={"image": 1, "audio": 1})
    prompt = to_generation(message, LIMITS, media).prompt()
    assert prompt.media.items == [
        MediaItem(modality="image", url="data:a"),
        MediaItem(modality="audio", url="http://b/"),
    ]
    message.media_refs.items.add(url="c")
    with pytest.raises(BadRequest, match=r"items\[2\]\.modality"):
        to_generation(message, LIMITS, media).prompt()
    message.media_refs.items[2].modality = common_pb2.VIDEO
    message.media_refs.items[2].url = ""
    with pytest.raises(BadRequest, match=r"items\[2\]\.url"):
        to_generation(message, LIMITS, media).prompt()
