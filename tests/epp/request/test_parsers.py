"""What each parser understands, and what it refuses with a sentence."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.epp.request.parsers.parser import Call, Reads
from weft.epp.request.parsers.payload import frame
from weft.epp.request.parsers.table import DEFAULT_PARSERS, PARSERS, ParserTable
from weft.epp.request.values import InferenceRequest, Prompt, Refused
from weft.pb.vllm_engine_pb2 import (
    EmbedRequest,
    GenerateRequest,
    MultimodalInputs,
    SamplingParams,
    TokenizedInput,
)

ALL = ParserTable([name for name in PARSERS if name != "passthrough-parser"])
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
EMBED = "/vllm.grpc.engine.VllmEngine/Embed"


def parse(path: str, body: object, **headers: str) -> InferenceRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    parser = ALL.find(path)
    is_grpc = "VllmEngine" in path or "PredictionService" in path
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return parser.parse(Call(path=path, headers=names, request_id="r", is_grpc=is_grpc, body=raw))


def refusal(path: str, body: object, **headers: str) -> str:
    with pytest.raises(Refused) as caught:
        parse(path, body, **headers)
    assert caught.value.status == 400
    return caught.value.message


def outcome(path: str, body: object) -> int:
    try:
        parse(path, body)
    except Refused as refused:
        return refused.status
    return 200


@pytest.mark.parametrize(
    ("path", "parser"),
    [
        ("/v1/chat/completions", "openai-parser"),
        ("/proxy/v1/completions", "openai-parser"),
        ("/v1/chat/completions/render", "openai-parser"),
        ("/v1/embeddings", "openai-parser"),
        ("/v1/responses", "openai-parser"),
        ("/v1/conversations", "openai-parser"),
        ("/v1/images/generations", "openai-parser"),
        ("/v1/messages", "anthropic-parser"),
        ("/v1/messages/count_tokens", "anthropic-parser"),
        ("/inference/v1/generate", "vllmhttp-parser"),
        ("/generate", "sglanghttp-parser"),
        ("/v2/generate", None),
        ("/v1/mychat/xcompletions", None),
        (GENERATE, "vllmgrpc-parser"),
        ("/vllm.grpc.engine.VllmEngine/HealthCheck", "vllmgrpc-parser"),
        ("/google.cloud.aiplatform.v1.PredictionService/StreamRawPredict", "vertexai-parser"),
        ("/google.cloud.aiplatform.v1.PredictionService/Explain", "vertexai-parser"),
        ("/", None),
    ],
)
def test_the_longest_claimed_end_decides(path: str, parser: str | None):
    """On whole segments; nobody claims the rest."""
    found = ALL.find(path)
    assert (found.type if found else None) == parser


def test_the_default_list_ends_in_the_fallback():
    """As the reference's does."""
    table = ParserTable(DEFAULT_PARSERS)
    fallback = table.find("/whatever")
    assert fallback.reads("/whatever") is Reads.HEADERS


def test_a_chat_is_tools_then_messages():
    """In the order in which a model sees them, so that equal prefixes are equal texts."""
    request = parse(
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}, {"text": " there"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]},
            ],
            "tools": [{"name": "t"}],
            "stream": True,
            "max_tokens": 5,
            "max_completion_tokens": 7,
            "cache_salt": "s",
        },
    )
    text = '[{"name": "t"}]systembe kinduserhi thereassistant[{"id": 1}]'
    assert request.prompts == (Prompt(text=text),)
    assert (request.model, request.cache_salt) == ("m", "s")
    assert (request.is_streaming, request.max_tokens) == (True, 7)


def test_an_image_counts_by_its_bytes():
    """Two images are two prefixes; a long one does not make a long prompt."""

    def text(letter: str) -> str:
        url = {"type": "image_url", "image_url": {"url": "data:" + letter * 5000}}
        body = {"model": "m", "messages": [{"role": "user", "content": [url]}]}
        return parse("/v1/chat/completions", body).prompts[0].text or ""

    assert text("a") == text("a") != text("b")
    assert len(text("a")) < 100


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TEXT = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    ("path", "body", "num_media"),
    [
        ("/v1/chat/completions", {"messages": [{"content": [TEXT, IMAGE]}, {"content": [IMAGE]}]}, 2),
        ("/v1/chat/completions", {"messages": [{"content": [{"type": "input_audio"}]}]}, 1),
        ("/v1/chat/completions", {"messages": [{"content": [{"type": "video_url"}]}]}, 1),
        ("/v1/chat/completions", {"messages": [{"content": "hi"}, {"content": [TEXT, "x"]}]}, 0),
        ("/v1/embeddings", {"messages": [{"content": [IMAGE]}]}, 1),
        ("/v1/responses", {"input": [{"content": [{"type": "input_image"}]}]}, 1),
        ("/v1/messages", {"messages": [{"content": [{"type": "image", "source": {}}]}]}, 1),
        ("/inference/v1/generate", {
            "token_ids": [1], "features": {"mm_hashes": {"image": ["a", "b"], "audio": ["c"]}}}, 3),
        ("/generate", {"text": "hi", "image_data": "http://x/a.png"}, 1),
        (GENERATE, frame(GenerateRequest(
            text="hi", mm_inputs=MultimodalInputs(mm_hashes=["a", "b"])).SerializeToString()), 2),
    ],
)  # fmt: skip
def test_media_are_counted_in_every_dialect(path: str, body: Any, num_media: int):
    """Without the count the encode stage never runs."""
    body = body if isinstance(body, bytes) else {"model": "m"} | body
    assert len(parse(path, body).media) == num_media


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [
        ("/inference/v1/generate",
         *({"token_ids": [1], "features": {"mm_hashes": {"image": [each]}}} for each in "ab")),
        ("/generate", *({"text": "hi", "image_data": [each]} for each in "ab")),
    ],
)  # fmt: skip
def test_what_stands_at_placeholders_is_part_of_the_prefix(path: str, first: Any, second: Any):
    """Two pictures behind the same ids are two prompts."""
    assert parse(path, first).cache_salt == parse(path, first).cache_salt
    assert parse(path, first).cache_salt != parse(path, second).cache_salt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [IMAGE]}]}),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": [IMAGE]}]}),
        ("/v1/completions/render", {"prompt": "hi"}),
    ],
)
def test_what_is_only_counted_or_rendered_is_no_prompt(path: str, body: Any):
    """No server computes it, so no cache holds it; its model counts still, for a rewrite."""
    request = parse(path, {"model": "m"} | body)
    assert (request.prompts, request.media, request.model) == ((), (), "m")
    assert request.is_schedulable


@pytest.mark.parametrize("body", [{"input": "Hello"}, [1], {"messages": []}, {"messages": 5}])
def test_a_count_of_tokens_of_another_body_goes_anywhere(body: object):
    """Nothing is computed for it, and the server may know forms of it that the picker does not."""
    assert not parse("/v1/messages/count_tokens", body).is_schedulable
    assert outcome("/v1/messages", body) == 400


def test_a_missing_model_is_left_to_who_decides():
    """A rewrite may fill it in; over HTTP somebody has to."""
    assert parse("/v1/completions", {"prompt": "hi"}).needs_model
    assert parse("/v1/messages", {"messages": [{"content": "hi"}]}).needs_model
    assert not parse("/generate", {"text": "hi"}).needs_model


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("hi", (Prompt(text="hi"),)),
        (["a", "b"], (Prompt(text="a"), Prompt(text="b"))),
        ([1, 2], (Prompt(token_ids=(1, 2)),)),
        ([[1], [2, 3]], (Prompt(token_ids=(1,)), Prompt(token_ids=(2, 3)))),
    ],
)
@pytest.mark.parametrize(
    ("path", "name"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
)
def test_prompts_come_in_four_shapes(path: str, name: str, value: object, prompts: object):
    """One or several, as text or as ids."""
    assert parse(path, {"model": "m", name: value}).prompts == prompts


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"input": "hi", "instructions": "be kind"}, "be kinduserhi"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
            "userhi",
        ),
        (
            {"input": [{"type": "function_call_output", "output": "42"}]},
            'function_call_output"42"',
        ),
    ],
)
def test_responses_take_a_text_or_items(body: dict[str, Any], text: str):
    """Instructions come first."""
    assert parse("/v1/responses", {"model": "m"} | body).prompts == (Prompt(text=text),)


def test_a_message_of_anthropic_is_tools_system_turns():
    """The system's text stands beside the turns there."""
    request = parse(
        "/v1/messages",
        {
            "model": "m",
            "system": [{"type": "text", "text": "be kind"}],
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 9,
        },
    )
    assert request.prompts == (Prompt(text="be kinduserhi"),)
    assert request.max_tokens == 9


def test_token_ids_over_http_are_taken_as_they_are():
    """vLLM's and SGLang's own paths."""
    vllm = parse(
        "/inference/v1/generate",
        {"token_ids": [1, 2], "sampling_params": {"max_tokens": 3}, "cache_salt": "s"},
    )
    assert (vllm.prompts, vllm.max_tokens) == ((Prompt(token_ids=(1, 2)),), 3)
    sglang = parse(
        "/generate",
        {"input_ids": [[1], [2]], "sampling_params": {"max_new_tokens": 4}, "extra_key": "s"},
    )
    assert sglang.prompts == (Prompt(token_ids=(1,)), Prompt(token_ids=(2,)))
    assert (sglang.max_tokens, sglang.cache_salt) == (4, "s")
    assert parse("/generate", {"text": "hi", "input_ids": None}).prompts == (Prompt(text="hi"),)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", b"", "no body"),
        ("/v1/chat/completions", b"{", "not valid JSON"),
        ("/v1/chat/completions", b"[1]", "Expected `object`"),
        ("/v1/chat/completions", {"model": "m"}, "messages must be a list"),
        ("/v1/chat/completions", {"model": "m", "messages": []}, "messages must be a list"),
        ("/v1/chat/completions", {"model": 5, "messages": [{}]}, "at `$.model`"),
        ("/v1/completions", {"model": "m"}, "prompt not found"),
        ("/v1/completions", {"model": "m", "prompt": None}, "prompt not found"),
        ("/v1/completions", {"model": "m", "prompt": []}, "must not be empty"),
        ("/v1/completions", {"model": "m", "prompt": [-1]}, "prompt must be"),
        ("/v1/completions", {"model": "m", "prompt": [2**32]}, "prompt must be"),
        ("/v1/completions", {"model": "m", "prompt": [1, "a"]}, "prompt must be"),
        ("/v1/completions", {"model": "m", "prompt": {"a": 1}}, "prompt must be"),
        ("/v1/embeddings", {"model": "m"}, "input not found"),
        ("/v1/responses", {"model": "m"}, "input not found"),
        ("/v1/messages", {"model": "m"}, "messages must be a list"),
        ("/inference/v1/generate", {"token_ids": []}, "token_ids must not be empty"),
        ("/inference/v1/generate", {}, "token_ids must be a list"),
        ("/inference/v1/generate", {"token_ids": "hi"}, "token_ids must be a list"),
        ("/inference/v1/generate", {"token_ids": [1.5]}, "token_ids must be"),
        ("/generate", {}, "needs text or input_ids"),
        ("/v1/completions", b'{"model":"m","prompt":"\xff"}', "prompt"),
        ("/v1/completions", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(path: str, body: object, words: str):
    """400, saying what was wrong."""
    assert words in refusal(path, body)


@pytest.mark.parametrize("body", [{}, {"model": "m"}, {"items": None}, {"metadata": {"a": "b"}}])
def test_a_conversation_without_items_is_routed_by_load(body: dict[str, Any]):
    """OpenAI's clients create conversations that are empty, and name no model."""
    request = parse("/v1/conversations", body)
    assert (request.is_schedulable, request.needs_model, request.prompts) == (True, False, ())


@pytest.mark.parametrize("body", [b"{", [], {"items": 5}, {"items": [5]}])
def test_a_conversation_that_cannot_be_read_is_left_to_the_server(body: object):
    """Any server refuses it."""
    assert not parse("/v1/conversations", body).is_schedulable


def test_completions_of_embeddings_alone_are_routed_by_load():
    """The server takes them; the picker compares texts and token ids."""
    request = parse("/v1/completions", {"model": "m", "prompt_embeds": "AAAA", "max_tokens": 3})
    assert (request.prompts, request.max_tokens, request.is_schedulable) == ((), 3, True)


@given(body=st.binary(max_size=200), path=st.sampled_from([
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate",
    "/inference/v1/generate", GENERATE, EMBED, "/x.PredictionService/ChatCompletions",
    "/x.PredictionService/RawPredict",
]))  # fmt: skip
def test_any_bytes_are_understood_or_refused(body: bytes, path: str):
    """Nothing but a refusal ever comes out of a parser."""
    assert outcome(path, body) in {200, 400, 413}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "model", "messages", "role", "content", "prompt", "input", "items", "tools", "type",
        "text", "system", "token_ids", "input_ids", "sampling_params", "extra_key", "stream",
    ]), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@given(body=JSON, path=st.sampled_from([
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate",
    "/inference/v1/generate", "/v1/embeddings", "/v1/conversations",
]))  # fmt: skip
def test_any_json_is_understood_or_refused(body: object, path: str):
    """Of whatever shape."""
    assert outcome(path, body) in {200, 400}


def test_generate_is_read_with_what_matters():
    """Ids as they are; whether it streams; how long the answer may get."""
    message = GenerateRequest(
        tokenized=TokenizedInput(input_ids=[5, 6]),
        sampling_params=SamplingParams(max_tokens=3),
        stream=True,
        mm_inputs=MultimodalInputs(mm_hashes=["abc"]),
        extra_mm_inputs=[MultimodalInputs(mm_hashes=["d"])],
    )
    request = parse(GENERATE, frame(message.SerializeToString()))
    assert request.prompts == (Prompt(token_ids=(5, 6)),)
    assert (request.is_streaming, request.max_tokens, request.model) == (True, 3, "")
    assert request.cache_salt == "abcd"  # the images are part of the prefix


def test_a_text_stays_a_text():
    """The estimate, or a tokenizer, turns it into ids later. No max_tokens is none."""
    request = parse(GENERATE, frame(GenerateRequest(text="Hello").SerializeToString()))
    assert request.prompts == (Prompt(text="Hello"),)
    assert request.max_tokens is None


def test_embed_is_read():
    """It is always tokenised."""
    message = EmbedRequest(tokenized=TokenizedInput(original_text="Hello", input_ids=[9906]))
    request = parse(EMBED, frame(message.SerializeToString()))
    assert request.prompts == (Prompt(token_ids=(9906,)),)


def test_other_calls_are_not_scheduled():
    """And do not wait for a body."""
    path = "/vllm.grpc.engine.VllmEngine/GetModelInfo"
    assert PARSERS["vllmgrpc-parser"].reads(path) is Reads.NOTHING
    assert not parse(path, b"").is_schedulable


@pytest.mark.parametrize(
    ("path", "body", "headers", "words"),
    [
        (GENERATE, b"\0\0", {}, "2 bytes are not a gRPC frame"),
        (GENERATE, b"\0\0\0\0\5ab", {}, "10 bytes are announced, but 7 arrived"),
        (GENERATE, b"\7\0\0\0\0", {}, "first byte must be 0 or 1"),
        (GENERATE, frame(b"\xff\xff"), {}, "expected a GenerateRequest"),
        (GENERATE, frame(b""), {}, "expected a GenerateRequest"),
        (EMBED, frame(b""), {}, "expected an EmbedRequest"),
        (GENERATE, b"\1\0\0\0\3abc", {"grpc_encoding": "gzip"}, "not gzip"),
        (GENERATE, b"\1\0\0\0\3abc", {"grpc_encoding": "snappy"}, "must be one of gzip"),
        (GENERATE, b"\1\0\0\0\3abc", {}, "must be one of gzip"),
    ],
)
def test_bad_frames_are_refused(path: str, body: bytes, headers: dict[str, str], words: str):
    """With the reason."""
    assert words in refusal(path, body, **headers)


def test_a_frame_that_unpacks_to_too_much_is_refused():
    """A few kilobytes must not become gigabytes."""
    packed = gzip.compress(bytes(10_000_000))
    body = b"\1" + len(packed).to_bytes(4, "big") + packed
    call = Call(
        path=GENERATE,
        headers={"grpc-encoding": "gzip"},
        request_id="r",
        is_grpc=True,
        body=body,
        max_body_bytes=1_000_000,
    )
    with pytest.raises(Refused) as caught:
        PARSERS["vllmgrpc-parser"].parse(call)
    assert caught.value.status == 413


def field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes((number << 3 | 2, len(value))) + value


CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def vertex(data: bytes) -> bytes:
    body = field(1, b"application/json") + field(2, data)
    return frame(field(1, b"projects/p") + field(2, body))


@pytest.mark.parametrize("method", ["ChatCompletions", "RawPredict", "StreamRawPredict"])
def test_vertex_holds_a_chat(method: str):
    """JSON in an HttpBody in a prediction request in a frame."""
    request = parse(f"/google.cloud.aiplatform.v1.PredictionService/{method}", vertex(CHAT))
    assert (request.model, request.parser) == ("m", "vertexai-parser")
    assert request.prompts == (Prompt(text="userhi"),)


def test_a_raw_prediction_may_be_anything():
    """What is no chat goes to any endpoint."""
    path = "/google.cloud.aiplatform.v1.PredictionService/RawPredict"
    assert not parse(path, vertex(b'{"instances":[1]}')).is_schedulable


def test_another_model_in_a_vertex_request():
    """The lengths around the JSON change with it."""
    path = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"
    parser = PARSERS["vertexai-parser"]
    call = Call(path=path, headers={}, request_id="r", is_grpc=True, body=vertex(CHAT))
    renamed = parser.rename(call, "x" * 30)
    assert renamed == vertex(CHAT.replace(b'"m"', b'"%s"' % (b"x" * 30)))
