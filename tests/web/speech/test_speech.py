"""/v1/audio/* over HTTP, before an engine that hears what the bytes say; forms, formats, limits and refusals."""

import asyncio
import json

import openai
import pytest

from tests.doubles.fake_speech import CLIP_S, FIRST_TIMESTAMP_ID, PROMPT, FakeSpeechEngine
from tests.web.http.serving import serving
from weft.core.errors import Overloaded
from weft.core.values.speech import MAX_FILE_BYTES, SpeechTask
from weft.core.values.types import OutputKind

TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
FILE = {"file": ("a.wav", b"hello|world")}


@pytest.fixture
async def site():
    """A server before an engine that hears."""
    async with serving(engine=FakeSpeechEngine()) as made:
        yield made


async def post(site, path=TRANSCRIBE, files=FILE, **fields):
    return await site.http.post(path, files=files, data=fields)


async def error_of(site, **fields):
    answer = await post(site, **fields)
    return answer.status_code, answer.json()["error"]


async def events(site, path=TRANSCRIBE, **fields):
    answer = await post(site, path, stream="true", **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, end, nothing = answer.text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


async def test_clips_are_one_text(site):
    """With the seconds of the recording, rounded up; of a translation OpenAI has the text alone."""
    usage = {"type": "duration", "seconds": 4}
    assert (await post(site)).json() == {"text": "hello world", "usage": usage}
    assert (await post(site, TRANSLATE)).json() == {"text": "hello world"}
    assert [one[0].task for one in site.engine.speeches] == list(SpeechTask)


async def test_text_is_plain(site):
    """The format of that name is no JSON."""
    answer = await post(site, response_format="text")
    assert answer.text == "hello world"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_verbose_answers_say_when(site):
    """Segments are between two marks, counted through all clips and never beyond the end."""
    granularities = {"timestamp_granularities[]": "segment"}
    answer = (
        await post(site, response_format="verbose_json", language="de", **granularities)
    ).json()
    first, second = answer.pop("segments")
    assert answer == {
        "text": "hello world",
        "task": "transcribe",
        "language": "de",
        "duration": 2 * CLIP_S - 0.5,
        "usage": {"type": "duration", "seconds": 4},
    }
    assert (first["id"], first["start"], first["end"], first["text"]) == (0, 0.0, 1.0, "hello")
    assert (second["id"], second["start"], second["end"], second["seek"]) == (1, 2.0, 3.0, 2)
    assert second["tokens"] == list(b"world")
    assert (second["avg_logprob"], second["temperature"]) == (-0.5, 0.0)
    assert second["no_speech_prob"] is None


async def test_subtitles_have_times_and_texts(site):
    """SubRip numbers them and has commas; WebVTT has a first line and points."""
    srt = await post(site, response_format="srt")
    assert srt.headers["content-type"] == "text/plain; charset=utf-8"
    assert srt.text == (
        "1\n00:00:00,000 --> 00:00:01,000\nhello\n\n2\n00:00:02,000 --> 00:00:03,000\nworld\n"
    )
    vtt = await post(site, TRANSLATE, response_format="vtt")
    assert vtt.headers["content-type"] == "text/vtt; charset=utf-8"
    assert vtt.text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nhello\n\n00:00:02.000 --> 00:00:03.000\nworld\n"
    )


async def test_streams_have_chunks_of_their_own_kind(site):
    """A text an event, a space between clips, and one end."""
    chunks = await events(site)
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(texts) == "hello world"
    assert {(chunk["object"], chunk["model"]) for chunk in chunks} == {
        ("transcription.chunk", "fake-model")
    }
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("trsc-")
    assert chunks[0]["choices"] == [{"delta": {"content": "h"}}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert not any("finish_reason" in chunk["choices"][0] for chunk in chunks[:-1])
    assert {chunk["object"] for chunk in await events(site, TRANSLATE)} == {"translation.chunk"}


async def test_a_text_with_a_cut_clip_is_cut(site):
    """Whichever it was."""
    chunks = await events(site, files={"file": ("a.wav", b"HELLO|world")})
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_usage_of_a_stream_is_tokens(site):
    """At the end if it is requested, and with each chunk too."""
    last = (await events(site, stream_include_usage="true"))[-1]
    prompt, said = 2 * len(PROMPT) + 100, len("helloworld")
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said,
    }  # fmt: skip
    running = await events(site, stream_include_usage="true", stream_continuous_usage_stats="true")
    assert [chunk["usage"]["completion_tokens"] for chunk in running[:3]] == [1, 2, 3]


async def test_every_field_reaches_the_engine(site):
    """Text becomes what the field is; temperature is 0 where none is given, whatever the model's own."""
    given = {
        "language": "de", "to_language": "fr", "prompt": "once", "hotwords": "weft",
        "temperature": "0.5", "top_p": "0.9", "top_k": "7", "min_p": "0.1", "seed": "3",
        "frequency_penalty": "0.2", "presence_penalty": "0.3", "repetition_penalty": "1.1",
        "max_completion_tokens": "9",
    }  # fmt: skip
    await post(site, **given)
    await post(site)
    (speech, params, options), (_, plain, _) = site.engine.speeches
    for name, text in given.items():
        where = speech if hasattr(speech, name) else params
        name = "max_tokens" if name == "max_completion_tokens" else name
        assert str(getattr(where, name)) == text
    assert speech.data == FILE["file"][1]
    assert params.output_kind is OutputKind.FINAL_ONLY
    assert (plain.temperature, plain.max_tokens) == (0.0, None)
    assert options.request_id


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"response_format": "srt", "stream": "1"}, "response_format", "srt does not go with"),
        ({"response_format": "diarized_json"}, "response_format", "speakers"),
        ({"response_format": "x"}, "response_format", "json, text, verbose_json, srt, vtt"),
        ({"response_format": "verbose_json", "stream": "1"}, "response_format", "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]", "timestamps of words"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities[]", "verbose_json"),
        ({"stream_include_usage": "true"}, "stream_include_usage", "needs stream"),
        ({"use_beam_search": "true"}, "use_beam_search", "beam search"),
        ({"n": "2"}, "n", "beam search"),
        ({"length_penalty": "0.5"}, "length_penalty", "beam search"),
        ({"watermarking": "true"}, "watermarking", "watermark"),
        ({"vllm_xargs": '{"a": 1}'}, "vllm_xargs", "no further arguments"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy", "quiet"),
        ({"include[]": "logprobs"}, "include[]", "averages"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names[]", "speakers"),
        ({"known_speaker_references[]": "x"}, "known_speaker_references[]", "speakers"),
        ({"temperature": "3"}, "temperature", "temperature"),
        ({"temperature": "warm"}, "temperature", "Expected `float"),
        ({"model": "other"}, "model", "does not exist"),
        ({"files": {"file": ("a.wav", b"")}}, "file", "empty"),
        ({"files": {"other": ("a.wav", b"x")}}, "file", "missing required field"),
        ({"files": {"x": (None, "y")}, "file": "eHg="}, "file", "must be a file"),
        ({"files": {"file": ("a.wav", bytes(MAX_FILE_BYTES + 1))}}, "file", "at most"),
    ],
)  # fmt: skip
async def test_what_is_not_offered_is_refused_by_name(site, fields, name, words):
    """As any wrong field is; the engine hears nothing of it."""
    status, error = await error_of(site, **fields)
    assert status == (404 if name == "model" else 400)
    assert error["param"] == name
    assert words in error["message"]
    assert site.engine.speeches == []


async def test_values_that_change_nothing_are_taken(site):
    """As clients that write out every default send them."""
    fields = {"n": "1", "use_beam_search": "false", "length_penalty": "1.0", "vllm_xargs": "{}",
              "chunking_strategy": "auto", "watermarking": "false", "prompt": "",
              "include_stop_str_in_output": "false", "stream": "false"}  # fmt: skip
    assert (await post(site, **fields)).json()["text"] == "hello world"


async def test_times_need_a_model_that_has_them():
    """Others are refused before the engine is."""
    async with serving(engine=FakeSpeechEngine(first_timestamp_id=None)) as site:
        status, error = await error_of(site, response_format="verbose_json")
    assert (status, error["param"]) == (400, "response_format")
    assert "the model gives no timestamps" in error["message"]


@pytest.mark.parametrize("path", [TRANSCRIBE, TRANSLATE])
async def test_without_such_a_model_it_is_refused_before_the_body(path):
    """400, with what it needs; a body that never ends is not waited for."""
    async with serving() as site:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n"
        answer = await site.exchange(head.encode())
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b"such as Whisper" in answer


BOUNDARY = "b"
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello\r\n'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the form"),
        (PART, "before its last boundary"),
        (b"no form", "is not multipart/form-data"),
        (PART + PART + b"--b--\r\n", "Too many files"),
        (b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\n1\r\n' * 2 + b"--b--\r\n", "duplicate field"),
        (b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\n1\r\n' * 999 + b"--b--\r\n", "Too many"),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\n1\r\n--b--\r\n", "name"),
        (PART.replace(b"; filename", b"; x").replace(b"hello", b"a" * 2**19), "maximum size"),
    ],
    ids=["empty", "cut", "text", "files", "twice", "fields", "nameless", "large"],
)  # fmt: skip
async def test_forms_that_cannot_be_read_are_refused(site, body, words):
    """Each with its reason, and the next one is served."""
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    answer = await site.http.post(TRANSCRIBE, content=body, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert (await post(site)).status_code == 200


async def test_only_forms_are_taken_and_only_so_large(site):
    """Others are 415, and 413 is said before the whole has come."""
    assert (await site.http.post(TRANSCRIBE, json={})).status_code == 415
    headers = {"content-type": "multipart/form-data"}
    answer = await site.http.post(TRANSCRIBE, content=b"x", headers=headers)
    assert "boundary" in answer.json()["error"]["message"].lower()
    files = {"file": ("a.wav", bytes(MAX_FILE_BYTES + 2**21))}
    assert (await post(site, files=files)).status_code == 413


async def test_pages_of_other_sites_send_no_forms(site):
    """Their browsers would send one without a question first; the page that this server has may."""

    async def status(origin: str) -> int:
        answer = await site.http.post(TRANSCRIBE, files=FILE, headers={"origin": origin})
        return answer.status_code

    assert await status("https://evil.example") == 403
    assert await status(site.url) == 200


async def test_unknown_fields_are_ignored_with_a_warning(site):
    """As those of JSON bodies are, unless the server is strict."""
    answer = await post(site, langauge="de")
    assert answer.status_code == 200
    assert "did you mean 'language'" in answer.headers["warning"]
    async with serving(engine=FakeSpeechEngine(), strict=True) as strict:
        status, error = await error_of(strict, langauge="de")
    assert (status, error["param"]) == (400, "langauge")


async def test_a_client_that_leaves_ends_the_engines_work(site):
    """The engine's request is closed."""
    site.engine.hold()
    asking = asyncio.create_task(post(site, stream="true"))
    await site.engine.wait_for_open(1)
    asking.cancel()
    await site.engine.wait_for_open(0)
    assert len(site.engine.dropped) == 1


async def test_a_failure_is_the_requests_own(site):
    """Before the first chunk it has a status."""
    site.engine.failure = Overloaded("no room")
    answer = await post(site, stream="true")
    assert answer.status_code == 429
    site.engine.failure = None
    assert (await post(site)).status_code == 200


async def test_openais_client_reads_all_of_it(site):
    """Answers as its own types, and chunks with their choices."""
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none") as client:
        create = client.audio.transcriptions.create
        whole = await create(model="fake-model", file=FILE["file"])
        verbose = await create(
            model="fake-model", file=FILE["file"], response_format="verbose_json",
            timestamp_granularities=["segment"],
        )  # fmt: skip
        text = await create(model="fake-model", file=FILE["file"], response_format="text")
        stream = await create(model="fake-model", file=FILE["file"], stream=True)
        said = "".join([chunk.choices[0]["delta"]["content"] async for chunk in stream])
        with pytest.warns(
            DeprecationWarning, match="deprecated"
        ):  # of the client's next version, which has none
            translated = await client.audio.translations.create(
                model="fake-model", file=FILE["file"], extra_body={"to_language": "fr"}
            )
    assert {whole.text, verbose.text, text, said, translated.text} == {"hello world"}
    assert [segment.text for segment in verbose.segments] == ["hello", "world"]
    assert FIRST_TIMESTAMP_ID not in verbose.segments[0].tokens


async def test_the_model_is_one_of_speech(site):
    """/api/show says so, and that the model completes no texts."""
    (card,) = (await site.http.get("/v1/models")).json()["data"]
    shown = await site.http.post("/api/show", json={"model": card["id"]})
    assert shown.json()["capabilities"] == ["transcription"]
