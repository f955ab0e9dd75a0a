"""Sounds in realtime sessions: buffers, transcripts in order, limits, and what is refused by name."""

import base64
import io
import wave
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.doubles.fake_engine import FakeEngine, make_config
from tests.doubles.fake_speech import FakeSpeechEngine
from tests.doubles.websocket_client import connected
from tests.web.http.serving import make_state, serving
from weft.core.values.media import MediaConfig
from weft.web.http.connections.socket_sessions import SessionLimits
from weft.web.items.conversation_store import Conversations
from weft.web.realtime import realtime_endpoint
from weft.web.realtime.sounds import RATE, SoundLimits
from weft.web.responses.runs import Runs
from weft.web.responses.store import ResponseLimits

SMALL = "/small/v1/realtime"
COMMIT, CLEAR = {"type": "input_audio_buffer.commit"}, {"type": "input_audio_buffer.clear"}
EVENTS = TypeAdapter(RealtimeServerEvent)  # as the package openai declares them
DONE = "conversation.item.input_audio_transcription.completed"


class Hearing(FakeSpeechEngine):
    """Hears what the samples of a WAV file say, as bytes."""

    async def run_speech(self, speech, params, options):
        with wave.open(io.BytesIO(speech.data)) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
            samples = file.readframes(file.getnframes())
        speech = msgspec.structs.replace(speech, data=samples)
        async for clip in super().run_speech(speech, params, options):
            yield clip


def append(samples: bytes) -> dict:
    """An event that adds samples."""
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples).decode()}


def small(**limits):
    """A second endpoint, with these limits of sounds."""
    state = make_state()
    runs, conversations = Runs(state, ResponseLimits()), Conversations(state.store)
    made = realtime_endpoint(runs, conversations, SessionLimits(), SoundLimits(**limits))
    return replace(made, path=SMALL)


@asynccontextmanager
async def session(path: str = "/v1/realtime", engine: FakeEngine | None = None, **limits):
    """A session of a server that transcribes, or of `engine`: client, server and the first event."""
    endpoints = (small(**limits),) if path.startswith(SMALL) else ()
    async with (
        serving(*endpoints, engine=engine or Hearing(is_only=True)) as site,
        connected(site.url, path) as client,
    ):
        yield client, site, await client.receive()


async def test_what_is_committed_is_transcribed_in_order():
    """Committed, an item, deltas that add up; the next one waits; settings reach the model as those of a form do."""
    async with session() as (client, site, created):
        assert created["session"]["type"] == "transcription"
        assert created["session"]["audio"]["input"]["format"]["rate"] == RATE
        settings = {"language": "de", "prompt": "names"}
        audio = {"input": {"transcription": settings, "turn_detection": None}}
        client.send(
            {"type": "session.update", "session": {"type": "transcription", "audio": audio}}
        )
        shown = (await client.receive())["session"]["audio"]["input"]["transcription"]
        assert shown == {"model": "fake-model", **settings}
        for piece in (b"hel", b"lo|wo"):
            client.send(append(piece))
        client.send(COMMIT)
        client.send(append(b"next"))
        client.send(COMMIT)
        events = [*await client.until(DONE), *await client.until(DONE)]
        params = site.engine.speeches[0]
    for event in (created, *events):
        assert EVENTS.validate_python(event).type == event["type"]
    committed = [event for event in events if event["type"] == "input_audio_buffer.committed"]
    first, second = (event["item_id"] for event in committed)
    assert [event["previous_item_id"] for event in committed] == [None, first]
    done = [event for event in events if event["type"] == DONE]
    assert [event["transcript"] for event in done] == ["hello wo", "next"]
    assert [event["item_id"] for event in done] == [first, second]
    assert done[0]["usage"] == {"type": "duration", "seconds": 4}
    deltas = [event for event in events if event["type"].endswith("transcription.delta")]
    texts = [event["delta"] for event in deltas if event["item_id"] == first]
    assert "".join(texts) == "hello wo"
    assert len(texts) > 2
    added = next(event for event in events if event["type"] == "conversation.item.added")
    assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    speech, sampling, _ = params
    assert (speech.language, speech.prompt, sampling.temperature) == ("de", "names", 0.0)


BAD = [
    (COMMIT, "input_audio_buffer"),
    ({"type": "input_audio_buffer.append", "audio": "no base64"}, "audio"),
    ({"type": "input_audio_buffer.append"}, "audio"),
    ({"type": "response.create"}, "type"),
    ({"type": "output_audio_buffer.clear"}, "type"),
    ({"type": "conversation.item.truncate", "item_id": "a"}, "type"),
    ({"instructions": "a"}, "session.instructions"),
    ({"include": ["item.input_audio_transcription.logprobs"]}, "session.include"),
    ({"type": "realtime"}, "session.type"),
    ({"audio": {"output": {"voice": "a"}}}, "session.audio.output"),
    ({"audio": {"input": {"format": {"type": "audio/pcmu"}}}}, "session.audio.input.format"),
    ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 8000}}}},
     "session.audio.input.format"),
    ({"audio": {"input": {"noise_reduction": {}}}}, "session.audio.input.noise_reduction"),
    ({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}},
     "session.audio.input.turn_detection"),
    ({"audio": {"input": {"unknown": 1}}}, "session.audio.input"),
    *(
        ({"audio": {"input": {"transcription": fields}}},
         f"session.audio.input.transcription.{next(iter(fields))}")
        for fields in ({"model": "x"}, {"delay": "low"}, {"keywords": ["a"]}, {"languages": ["de"]})
    ),
]  # fmt: skip


async def test_what_is_not_supported_is_refused_by_name():
    """And the session goes on."""
    async with session() as (client, _site, _created):
        for fields, parameter in BAD:
            is_event = "." in fields.get("type", "")
            update = {"type": "session.update", "session": {"type": "transcription", **fields}}
            client.send(fields if is_event else update)
            answer = await client.receive()
            assert answer["type"] == "error", (fields, answer)
            assert answer["error"]["param"] == parameter, (fields, answer)
        client.send(append(b"odd"))
        client.send(COMMIT)
        assert "whole samples" in (await client.receive())["error"]["message"]
        client.send(CLEAR)
        assert (await client.receive())["type"] == "input_audio_buffer.cleared"
        client.send(append(b"good"))
        client.send(COMMIT)
        assert (await client.until(DONE))[-1]["transcript"] == "good"


async def test_sounds_are_bounded_and_leave_nothing_behind():
    """In one session, in all of them together, and in number; what a session kept is free when it ends."""
    limits = {"max_bytes": 8, "max_bytes_of_all": 10, "max_waiting": 1}
    async with session(SMALL, **limits) as (client, site, _created):
        client.send(append(b"x" * 10))
        assert (await client.receive())["error"]["param"] == "audio"
        client.send(append(b"x" * 8))
        async with connected(site.url, SMALL) as other:
            await other.receive()
            other.send(append(b"x" * 4))
            assert "all sessions" in (await other.receive())["error"]["message"]
            client.send(CLEAR)
            await client.receive()
            other.send(append(b"x" * 8))
            other.send(COMMIT)
            assert (await other.until(DONE))[-1]["transcript"] == "x" * 8
            other.send(append(b"y" * 8))  # the transcribed sound is not kept
            other.send({"type": "session.update", "session": {"type": "transcription"}})
            assert (await other.receive())["type"] == "session.updated"
        engine = site.engine
        engine.hold()
        client.send(append(b"ab"))
        client.send(COMMIT)
        await client.until("conversation.item.done")
        client.send(append(b"cd"))
        client.send(COMMIT)
        assert "wait to be transcribed" in (await client.receive())["error"]["message"]
        await engine.run_freely()
        await client.until(DONE)


async def test_a_failed_transcript_is_an_event_of_its_item():
    """Without what failed inside; the next sound is transcribed."""
    async with session() as (client, _site, _created):
        client.send(append(b"\xff\xff"))  # no text: the fake fails
        client.send(COMMIT)
        failed = (await client.until("conversation.item.input_audio_transcription.failed"))[-1]
        assert failed["error"]["message"].startswith("internal error")
        assert EVENTS.validate_python(failed).content_index == 0
        client.send(append(b"good"))
        client.send(COMMIT)
        assert (await client.until(DONE))[-1]["transcript"] == "good"


async def test_types_of_sessions_are_those_of_the_model():
    """A model that chats has no transcripts; one that can do both changes until the first item."""
    async with serving() as site, connected(site.url) as client:
        await client.receive()
        for event in (append(b"ab"), COMMIT):
            client.send(event)
            assert "takes no sounds" in (await client.receive())["error"]["message"]
    engine = Hearing()
    async with session(engine=engine) as (client, site, created):
        assert created["session"]["type"] == "realtime"
        client.send({"type": "session.update", "session": {"type": "transcription"}})
        updated = await client.receive()
        assert updated["session"]["object"] == "realtime.transcription_session"
        client.send(append(b"ab"))
        client.send({"type": "session.update", "session": {"type": "realtime"}})
        assert (await client.receive())["error"]["param"] == "session.type"
    async with session("/v1/realtime?intent=transcription", engine) as (client, site, created):
        assert created["session"]["type"] == "transcription"


async def test_a_sound_is_an_item_of_a_conversation():
    """Its samples are in the item that is read, and count until it is deleted."""
    engine = FakeEngine(make_config(media=MediaConfig(max_items={"audio": 1})))
    async with session(SMALL, engine, max_bytes=8) as (client, _site, _created):
        client.send(append(b"12345678"))
        client.send(COMMIT)
        item = (await client.until("conversation.item.done"))[-1]["item"]
        assert item["content"] == [{"type": "input_audio", "transcript": None}]
        client.send({"type": "conversation.item.retrieve", "item_id": item["id"]})
        (part,) = (await client.receive())["item"]["content"]
        assert base64.b64decode(part["audio"]) == b"12345678"
        client.send(append(b"ab"))
        assert (await client.receive())["error"]["param"] == "audio"
        client.send({"type": "conversation.item.delete", "item_id": item["id"]})
        await client.receive()
        bad = [
            ({"type": "input_audio", "audio": "AAA="}, "user", None),
            ({"type": "input_audio", "audio": "AAA="}, "system", "of the user alone"),
            ({"type": "input_audio", "audio": "AAAA"}, "user", "whole samples"),
            ({"type": "input_audio"}, "user", "needs audio"),
            ({"type": "output_audio", "audio": "AAA="}, "assistant", "does not speak"),
            ({"type": "input_image", "image_url": "data:,"}, "user", "no pictures"),
        ]
        for content, role, words in bad:
            made = {"type": "message", "role": role, "content": [content]}
            client.send({"type": "conversation.item.create", "item": made})
            answer = await client.receive()
            assert (answer["type"] == "error") == (words is not None), answer
            assert words is None or words in answer["error"]["message"]
            if words is None:
                await client.receive()
