"""Cases of speech over HTTP, for a server of any engine with the tiny Whisper of `tests.doubles.whisper`.

A module has the fixtures `server` and `client`, and a class that inherits `SpeechCases`.
"""

import io
import json
import threading

import openai
import pytest

from tests.doubles.whisper import CLIP_S, sound
from tests.vllm.served import fetched, refused

MOST = 8  # tokens of a clip


def wav(seconds: float = 1.0, pitch: float = 440.0):
    file = io.BytesIO(sound(seconds, pitch))
    file.name = "sound.wav"
    return file


def heard(client, seconds=1.0, pitch=440.0, **fields):
    """A transcription of a tone, of few tokens a clip."""
    extra = {"max_completion_tokens": MOST, **fields.pop("extra_body", {})}
    return client.audio.transcriptions.create(
        model="whisper", file=wav(seconds, pitch), extra_body=extra,
        **{"language": "en", **fields},
    )  # fmt: skip


class SpeechCases:
    """What every engine does."""

    def test_a_recording_is_transcribed(self, client):
        """The same one to the same text, another one to another; its seconds are counted."""
        first, again, other = heard(client), heard(client), heard(client, pitch=3000.0)
        assert first.text == again.text != other.text
        assert (first.usage.type, first.usage.seconds) == ("duration", 1)
        assert heard(client, response_format="text") == first.text

    def test_language_and_prompt_reach_the_model(self, client):
        """Each changes what it goes on from; without a language the model hears it."""
        texts = {
            heard(client).text,
            heard(client, language="de").text,
            heard(client, prompt="once upon").text,
        }
        assert len(texts) == 3
        verbose = heard(client, language=openai.omit, response_format="verbose_json")
        assert len(verbose.language) in (2, 3)

    @pytest.mark.parametrize("seconds", [1.0, 2.5 * CLIP_S])
    def test_a_stream_says_the_same(self, client, seconds):
        """Delta by delta, with one end."""
        chunks = list(heard(client, seconds, stream=True))
        assert {chunk.object for chunk in chunks} == {"transcription.chunk"}
        deltas = [chunk.choices[0]["delta"]["content"] for chunk in chunks]
        assert "".join(deltas) == heard(client, seconds).text
        reasons = [chunk.choices[0].get("finish_reason") for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["length"]

    def test_translation_is_another_task(self, client):
        """Of the same recordings other texts, without usage, as OpenAI has it."""
        pitches = (440.0, 900.0, 2000.0, 3000.0)
        answers = [
            client.audio.translations.create(
                model="whisper",
                file=wav(pitch=pitch),
                extra_body={"language": "en", "max_completion_tokens": MOST},
            )
            for pitch in pitches
        ]
        texts = [heard(client, pitch=pitch).text for pitch in pitches]
        assert [answer.text for answer in answers] != texts
        assert not any(hasattr(answer, "usage") for answer in answers)

    @pytest.mark.parametrize(
        ("fields", "name", "words"),
        [
            ({"language": "xx"}, "language", "Unsupported language"),
            ({"extra_body": {"hotwords": "weft"}}, "hotwords", "not supported by this model"),
            ({"extra_body": {"to_language": "de"}}, "to_language", "not supported by this model"),
            ({"seconds": 700.0}, "file", "maximum allowed duration"),
        ],
        ids=["language", "hotwords", "to_language", "seconds"],
    )
    def test_what_the_model_does_not_do_is_refused(self, client, fields, name, words):
        """By its name."""
        with pytest.raises(openai.BadRequestError) as caught:
            heard(client, **fields)
        assert caught.value.param == name
        assert words in caught.value.message

    def test_what_is_no_sound_is_refused(self, client):
        """As the caller's error, and the next one is served."""
        for data in (b"no sound", sound(1.0)[:30]):
            with pytest.raises(openai.BadRequestError) as caught:
                client.audio.transcriptions.create(model="whisper", file=("a.wav", data))
            assert caught.value.param == "file"
        assert heard(client).text

    def test_a_model_of_speech_answers_no_chat(self, server):
        """400: it makes text of recordings alone."""
        message = {"role": "user", "content": "a"}
        for path, asked in (
            ("completions", {"prompt": "a"}),
            ("chat/completions", {"messages": [message]}),
        ):
            code, error = refused(server, f"/v1/{path}", {**asked, "max_tokens": 1})
            assert code == 400
            assert "it only transcribes speech; use /v1/audio/transcriptions" in error["message"]

    def test_requests_at_once_do_not_mix(self, client):
        """Each gets what it gets alone."""
        pitches = [200.0, 900.0, 3000.0]
        alone = {pitch: heard(client, pitch=pitch).text for pitch in pitches}
        together: dict[float, str] = {}
        threads = [
            threading.Thread(
                target=lambda p=pitch: together.update({p: heard(client, pitch=p).text})
            )
            for pitch in pitches
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert together == alone

    def test_metrics_count_them(self, server, client):
        """Under the endpoint's own path."""
        heard(client)
        text = fetched(server, "/metrics")
        assert 'handler="/v1/audio/transcriptions",method="POST",status="2xx"' in text
        assert json.loads(fetched(server, "/v1/models"))["data"][0]["id"] == "whisper"
