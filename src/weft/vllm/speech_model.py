"""Speech-to-text functions of vLLM's model class: splitting recordings into clips, prompts, languages. This module
imports vLLM, like `engine.py`.
"""

import io
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import Any

from weft.core.errors import BadRequest
from weft.core.values.media import SpeechConfig
from weft.core.values.speech import Speech, SpeechTask
from weft.vllm.engine import to_sampling_params

FIRST_TIMESTAMP = "<|0.00|>"
_NO_TIMESTAMPS = "<|notimestamps|>"


class SpeechModel:
    """The speech-to-text model of an `AsyncLLM`."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._config = llm.model_config
        self._class = import_module("vllm.model_executor.model_loader").get_model_cls(self._config)
        self._settings = {
            task: self._class.get_speech_to_text_config(self._config, task.value)
            for task in SpeechTask
        }
        envs = import_module("vllm.envs")
        self.max_bytes = int(envs.VLLM_MAX_AUDIO_CLIP_FILESIZE_MB * 2**20)
        self._limits = {
            "max_duration_s": envs.VLLM_MAX_AUDIO_DECODE_DURATION_S,
            "max_decode_bytes": envs.VLLM_MAX_AUDIO_DECODE_BYTES,
        }

    def describe(self, tasks: Sequence[str], token_id: Callable[[str], int | None]) -> SpeechConfig:
        """Returns the speech configuration that servers read."""
        has_times = self._class.supports_segment_timestamp
        return SpeechConfig(
            first_timestamp_id=token_id(FIRST_TIMESTAMP) if has_times else None,
            is_only="generate" not in tasks,
        )

    def check(self, speech: Speech) -> None:
        """Raises an error for a language that the model does not know."""
        for name in ("language", "to_language"):
            code = getattr(speech, name)
            try:
                if code is not None:
                    self._class.validate_language(code)
            except ValueError as error:
                raise BadRequest(name, f"{name}: {error}", code) from error

    def decode(self, speech: Speech) -> tuple[list[Any], float]:
        """Returns the clips of a recording and its length in seconds. Slow. If the recording's header shows that it is
        too long, raises an error before decoding.
        """
        settings = self._settings[speech.task]
        wave, rate = import_module("vllm.multimodal.media.audio").load_audio(
            io.BytesIO(speech.data), sr=settings.sample_rate, mono=True, **self._limits
        )
        there = import_module("vllm.multimodal.audio")
        duration_s = float(there.get_audio_duration(y=wave, sr=rate))
        longest = settings.max_audio_clip_s
        if longest is None or duration_s <= longest or not settings.allow_audio_chunking:
            return [wave], duration_s
        clips = there.split_audio(
            audio_data=wave,
            sample_rate=int(rate),
            max_clip_duration_s=longest,
            overlap_duration_s=settings.overlap_chunk_second,
            min_energy_window_size=settings.min_energy_split_window_size,
        )
        return clips, duration_s

    def seconds(self, clip: Any, task: SpeechTask) -> float:
        """Duration of a clip in seconds."""
        return float(clip.shape[-1] / self._settings[task].sample_rate)

    async def detect_language(self, clip: Any, task: SpeechTask, request_id: str) -> str | None:
        """Returns the language of a clip if the model detects it in a separate step; None if the model detects it while
        transcribing.
        """
        if not self._class.supports_explicit_language_detection:
            return None
        tokenizer = self._llm.renderer.get_tokenizer()
        prompt = self._class.get_language_detection_prompt(clip, self._settings[task])
        allowed = self._class.get_language_token_ids(tokenizer)
        params = to_sampling_params(
            {
                "max_tokens": 1,
                "temperature": 0.0,
                "allowed_token_ids": allowed,
                "structured_outputs": None,
                "repetition_detection": None,
            }
        )
        found: list[int] = []
        (processed,) = await self._render([prompt])
        outputs = self._llm.generate(processed, params, f"{request_id}-language")
        async with aclosing(outputs):
            async for output in outputs:
                found += output.outputs[0].token_ids
        return str(self._class.parse_language_detection_output(found, tokenizer))

    async def prompts(
        self, clips: Sequence[Any], speech: Speech, language: str | None
    ) -> list[Any]:
        """Returns the prompts of all clips for vLLM's engine. The audio features are computed on a separate thread."""
        made = [self._prompt(clip, speech, language) for clip in clips]
        return list(await self._render(made))

    def _prompt(self, clip: Any, speech: Speech, language: str | None) -> Any:
        given = {
            "task_type": speech.task.value if speech.task is SpeechTask.TRANSLATE else "",
            "request_prompt": speech.prompt,
            "to_language": speech.to_language,
            "hotwords": speech.hotwords,
            "language": speech.language,
        }
        read: set[str] = set()
        base: Any = import_module("vllm.config.speech_to_text").SpeechToTextParams

        class Params(base):  # type: ignore[misc]  # vLLM's is known once it is imported
            def __getattribute__(self, name: str) -> Any:
                read.add(name)
                return super().__getattribute__(name)

        params = Params(
            **{**given, "task_type": speech.task.value, "language": language},
            audio=clip,
            stt_config=self._settings[speech.task],
            model_config=self._config,
        )
        read.clear()
        prompt = self._class.get_generation_prompt(params)
        for name, value in given.items():
            if value and name not in read:
                raise _unread(name)
        return self._with_timestamps(prompt) if speech.has_timestamps else prompt

    @staticmethod
    def _with_timestamps(prompt: Any) -> Any:
        """Returns the prompt with Whisper's timestamps switched on."""
        decoder = prompt["decoder_prompt"]
        text = decoder["prompt"].replace(_NO_TIMESTAMPS, FIRST_TIMESTAMP)
        return {**prompt, "decoder_prompt": {**decoder, "prompt": text}}

    async def _render(self, prompts: list[Any]) -> Any:
        parse = import_module("vllm.renderers.inputs.preprocess").parse_model_prompt
        parsed = [parse(self._config, prompt) for prompt in prompts]
        return await self._llm.renderer.render_cmpl_async(parsed)

    def separator(self, language: str | None) -> str:
        """Returns the text that joins the texts of two clips."""
        return "" if language and language.lower() in self._class.no_space_languages else " "

    def num_audio_tokens(self, duration_s: float, task: SpeechTask) -> int:
        """Returns the number of audio tokens of a clip, which the prompt's tokens do not include."""
        settings = self._settings[task]
        return math.ceil(self._class.get_num_audio_tokens(duration_s, settings, self._config) or 0)

    def cleaner(self, *, is_streamed: bool) -> Callable[[str, bool], str]:
        """Returns a function that cleans a clip's text piece by piece; its second argument marks the last piece."""
        if is_streamed:
            clean: Callable[[str, bool], str] = (
                self._class.get_streaming_post_processor_cls()().process_delta
            )
            return clean
        return lambda text, _is_last: str(self._class.post_process_output(text))


def _unread(name: str) -> BadRequest:
    if name == "task_type":
        return BadRequest("model", "translation of audio is not supported by this model")
    field = "prompt" if name == "request_prompt" else name
    return BadRequest(field, f"{field} is not supported by this model")


def prompt_token_ids(prompt: Any) -> list[int]:
    """Returns the token ids of an engine prompt; for a model with an encoder, those of the decoder."""
    return list(prompt.get("decoder_prompt", prompt)["prompt_token_ids"])
