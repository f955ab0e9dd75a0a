"""Prompts of a model of speech, and the rules for its answers."""

from collections.abc import Sequence

from weft.core.errors import BadRequest
from weft.core.values.media import SpeechRules, SpeechTokens
from weft.core.values.speech import Speech, SpeechTask

_SHOWN = 40


def check_speech(speech: Speech, tokens: SpeechTokens) -> None:
    """Raises `BadRequest` for what the model does not do."""
    for name in ("hotwords", "to_language"):
        if getattr(speech, name) is not None:
            raise BadRequest(name, f"{name} is not supported by this model")
    if speech.task is SpeechTask.TRANSLATE and tokens.translate is None:
        raise BadRequest("model", "translation of audio is not supported by this model")
    known = tokens.languages or ("en",)
    if speech.language is not None and speech.language not in known:
        raise BadRequest(
            "language",
            f"Unsupported language {speech.language[:_SHOWN]!a}: language must be one of {', '.join(known)}",
            speech.language,
        )


def opening(
    tokens: SpeechTokens,
    said: Sequence[int],
    task: SpeechTask | None,
    language: str | None,
    room: int,
) -> list[int]:
    """Returns a prompt: the end of what was `said` before, up to `room` tokens, the start, and a language and a task if
    the model has them. Without a task it ends where the language is to be detected.
    """
    before = list(said[-room:]) if room > 0 else []
    prompt = [*([tokens.previous, *before] if before else []), tokens.start]
    if task is None or language is None or not tokens.languages:
        return prompt
    chosen = tokens.translate if task is SpeechTask.TRANSLATE else tokens.transcribe
    assert chosen is not None, "models with languages have tasks"
    return [*prompt, tokens.languages[language], chosen]


def rules_of(tokens: SpeechTokens) -> SpeechRules:
    """Returns the rules for transcripts: special tokens other than the end are never chosen."""
    special = range(tokens.end + 1, tokens.first_timestamp)
    return SpeechRules(
        end=tokens.end,
        first_timestamp=tokens.first_timestamp,
        suppressed=sorted({*tokens.suppressed, *special} - {tokens.end}),
        suppressed_first=tokens.suppressed_first,
    )
