"""OpenAI's /v1/audio/transcriptions and /v1/audio/translations, as endpoints."""

from functools import partial

from weft.core.errors import Unsupported
from weft.core.values.speech import SpeechTask
from weft.schema.speech import SpeechAnswer, SpeechChunk, TranscriptionForm, TranslationForm
from weft.web.http.endpoint import Endpoint
from weft.web.inference.call import first_if_blank, for_model
from weft.web.served import Served
from weft.web.speech.answer import answer_speech


def _admit(served: Served) -> None:
    if served.client.model_config.speech is None:
        raise Unsupported(
            "speech to text is not supported by this model: choose a model that transcribes, such as Whisper"
        )


def _endpoint(path: str, task: SpeechTask, body: type, summary: str) -> Endpoint:
    return Endpoint(
        method="POST",
        path=path,
        handler=for_model(partial(answer_speech, task), to_name=first_if_blank),
        summary=summary,
        body=body,
        is_form=True,
        admit=_admit,
        answer=SpeechAnswer,
        event=SpeechChunk,
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    _endpoint(
        "/v1/audio/transcriptions",
        SpeechTask.TRANSCRIBE,
        TranscriptionForm,
        "Transcribe a recording; the text comes in one piece or as a stream",
    ),
    _endpoint(
        "/v1/audio/translations",
        SpeechTask.TRANSLATE,
        TranslationForm,
        "What is said in a recording, in another language",
    ),
)
