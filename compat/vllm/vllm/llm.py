"""vLLM's `LLM`: Weft's, with vLLM's signatures and outputs."""

from collections.abc import Sequence
from typing import Any

import weft
from vllm.engine.arg_utils import EngineArgs
from vllm.outputs import (
    Classification,
    ClassificationRequestOutput,
    Embedding,
    EmbeddingRequestOutput,
    Pooling,
    PoolingRequestOutput,
    RequestOutput,
    Scoring,
    ScoringRequestOutput,
)
from weft.core.values.types import PoolingParams

_BESIDE = {"use_tqdm", "lora_request"}
_TAKEN = {
    "generate": {*_BESIDE, "tokenization_kwargs"},
    "chat": {
        *_BESIDE,
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "mm_processor_kwargs",
    },
    "encode": {"use_tqdm"},
    "embed": {"use_tqdm"},
    "classify": {"use_tqdm"},
    "score": {"use_tqdm"},
}
# What vLLM's methods take beside, and the values that change nothing.
_NEUTRAL = {
    "chat_template": (None,),
    "chat_template_content_format": ("auto",),
    "lora_request": (None,),
    "pooling_params": (None,),
    "priority": (None,),
    "tokenization_kwargs": (None,),
    "tools": (None,),
    "truncate_prompt_tokens": (None,),
}


class LLM:
    """A model in this process: a `weft.LLM`, whose other methods are here too."""

    def __init__(self, model: str, **options: Any) -> None:
        self._own = weft.LLM(model, **options)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "LLM":
        """Returns a model with these options."""
        return cls(engine_args.model, **engine_args.options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not hasattr(self._own, name):
            raise AttributeError(f"LLM of weft-vllm has no {name!r}")
        return getattr(self._own, name)

    def generate(self, prompts: Any, sampling_params: Any = None, **options: Any) -> list[Any]:
        """The finished output of each prompt."""
        own = self._own.generate(prompts, sampling_params, **_supported("generate", options))
        return [RequestOutput.of(one) for one in own]

    def chat(self, messages: Any, sampling_params: Any = None, **options: Any) -> list[Any]:
        """The next message of each conversation."""
        own = self._own.chat(messages, sampling_params, **_supported("chat", options))
        return [RequestOutput.of(one) for one in own]

    def encode(
        self,
        prompts: Any,
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: str | None = None,
        **options: Any,
    ) -> list[PoolingRequestOutput]:
        """What the model makes of each prompt; `pooling_task` may say what."""
        params = pooling_params or PoolingParams(task=pooling_task)
        made = self._own.encode(prompts, params, **_supported("encode", options))
        return [PoolingRequestOutput.of(one, Pooling(one.data)) for one in made]

    def embed(self, prompts: Any, **options: Any) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt."""
        made = self._own.encode(
            prompts, PoolingParams(task="embed"), **_supported("embed", options)
        )
        return [EmbeddingRequestOutput.of(one, Embedding(one.data)) for one in made]

    def classify(self, prompts: Any, **options: Any) -> list[ClassificationRequestOutput]:
        """The probabilities of all classes, for each prompt."""
        params = PoolingParams(task="classify")
        made = self._own.encode(prompts, params, **_supported("classify", options))
        return [ClassificationRequestOutput.of(one, Classification(one.data)) for one in made]

    def score(
        self, data_1: str | Sequence[str], data_2: str | Sequence[str], **options: Any
    ) -> list[ScoringRequestOutput]:
        """How well texts go together."""
        _supported("score", options)
        scores = self._own.score(data_1, data_2)
        return [ScoringRequestOutput(str(at), [], Scoring(one)) for at, one in enumerate(scores)]


def _supported(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that Weft's method takes; an error names the first that it cannot follow."""
    taken = {}
    for name, value in options.items():
        if name in _TAKEN[method]:
            taken[name] = value
        elif name not in _NEUTRAL or value not in _NEUTRAL[name]:
            raise NotImplementedError(
                f"LLM.{method} of weft-vllm does not follow {name}={value!r}; it takes "
                + ", ".join(sorted(_TAKEN[method]))
            )
    return taken
