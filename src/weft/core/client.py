"""`EngineClient`: the one way in which servers and Python callers see an engine, local or remote.

Method names and meanings are those of vLLM's protocol of the same name. What an implementation does
not offer yet raises `Unsupported`, naming the method.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

from weft.core.config import EngineConfig, ModelConfig
from weft.core.errors import Unsupported
from weft.core.types import (
    EngineLoad,
    KvEventBatch,
    LoRARequest,
    PauseMode,
    PoolingParams,
    PoolingRequestOutput,
    PromptType,
    Request,
    RequestOutput,
    SamplingParams,
    StreamingInput,
)


class Renderer(Protocol):
    """Text to token ids and back, for the served model."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""
        ...


class InputProcessor(Protocol):
    """Turns what a caller gave into a checked `Request`, or raises `BadRequest`."""

    def process(
        self,
        prompt: PromptType,
        params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> Request:
        """Tokenise, truncate and validate."""
        ...

    async def process_soon(
        self, prompt: PromptType, params: SamplingParams, request_id: str, **options: Any
    ) -> Request:
        """`process`, for an event loop's thread: a long text does not hold it."""
        ...


def _unsupported(method: str) -> NoReturn:
    raise Unsupported(f"{method} is not supported by this engine")


class EngineClient(Protocol):
    """One engine. Every accepted request ends in exactly one finished output or one error."""

    vllm_config: EngineConfig
    model_config: ModelConfig
    renderer: Renderer
    input_processor: InputProcessor

    # -- requests -----------------------------------------------------------------------------

    def generate(
        self,
        prompt: PromptType | AsyncIterable[StreamingInput],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs until one has `is_finished`. Closing the generator aborts the request.

        Smaller `priority` runs sooner under the priority policy. `prompt_text` only fills
        `RequestOutput.prompt`.

        A model that thinks before it answers gets its structured output after the thought, which
        `reasoning_parser_kwargs={"end": "</think>"}` describes: `end` is the text, 1 to 64
        characters, that the thought ends with, and no other key is known. `reasoning_ended` says
        whether it did in the prompt; None looks whether the prompt's text ends with `end`, spaces
        aside. True, or neither argument, starts the constraint with the first token; False needs
        `end`. What follows `end` in its last token is not looked at.

        A prompt may come in pieces, while the answer goes on: then each piece is answered in turn, its
        last output not finished though it has a `finish_reason`, and `sampling_params` count anew. A
        piece continues all that was said before, but for the last token of the answer to the one
        before it. When there are no more pieces, the last answer is the finished one, or an empty
        output is. Pieces take one answer, and neither "final_only", `stop`, truncation nor reasoning.

        Raises BadRequest, Overloaded, Unsupported or EngineDead.
        """
        ...

    def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        reasoning_ended: bool | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Yield one output: what the pooling task makes of the prompt.

        Raises BadRequest, Overloaded, EngineDead, or Unsupported where the model generates text.
        """
        _unsupported("encode")

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests by the ids callers gave; unknown and finished ids are no-ops."""
        ...

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        *,
        data_parallel_rank: int | None = None,
    ) -> None:
        """Let the KV connector clean up after a request that was refused before admission."""
        _unsupported("notify_kv_transfer_request_rejected")

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True until the engine is dead or shut down; also before the first request."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Same as `errored`."""
        ...

    @property
    def errored(self) -> bool:
        """Whether the engine is dead."""
        ...

    @property
    def dead_error(self) -> BaseException:
        """The error every call on a dead engine raises."""
        ...

    @property
    def num_active_requests(self) -> int:
        """Requests accepted and not yet finished."""
        ...

    async def check_health(self) -> None:
        """Raise `dead_error` if the engine is dead or has stopped making progress."""
        ...

    async def is_tracing_enabled(self) -> bool:
        """Whether request traces are exported."""
        return False

    async def do_log_stats(self) -> None:
        """Log one line of load now."""
        ...

    async def get_loads(self) -> list[EngineLoad]:
        """The latest load of every data-parallel rank."""
        ...

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Yield the prefix cache's changes for ever, from `start_sequence_number` if it is still kept.

        None starts with the next change. Sequence numbers show a gap when the start is too old.
        A subscriber that falls too far behind is ended with `Overloaded`.
        """
        _unsupported("subscribe_kv_events")

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked for: "generate", "embed", ..."""
        ...

    # -- control ------------------------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """Stop scheduling. New requests queue; `mode` decides about those in flight."""
        ...

    async def resume_generation(self) -> None:
        """Schedule again; a no-op when not paused."""
        ...

    async def is_paused(self) -> bool:
        """Whether a pause is in force."""
        ...

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drop every cached block. False, and no change, while a request holds blocks.

        With `reset_running_requests` those requests are preempted first and recompute later.
        """
        ...

    async def reset_mm_cache(self) -> None:
        """Drop cached multimodal inputs."""
        _unsupported("reset_mm_cache")

    async def reset_encoder_cache(self) -> None:
        """Drop cached encoder outputs."""
        _unsupported("reset_encoder_cache")

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        """Give memory back."""
        _unsupported("sleep")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Undo `sleep`."""
        _unsupported("wake_up")

    async def is_sleeping(self) -> bool:
        """Whether scheduling is paused or memory is not resident."""
        return await self.is_paused()

    async def start_profile(self) -> None:
        """Start recording a profile."""
        _unsupported("start_profile")

    async def stop_profile(self) -> None:
        """Stop recording and write the profile."""
        _unsupported("stop_profile")

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        """The adapters that requests may name, by name."""
        return {}

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter; True once requests may name it.

        One that is there already, under the same name and path, stays as it is; `load_inplace` loads
        it again, and whatever was cached with the former one is found no more. When as many as may be
        are loaded, the one that was used least lately gives way and is loaded again when it is asked
        for; while all of them are in use, this waits. Raises NotFound or BadRequest.
        """
        _unsupported("add_lora")

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget the adapter whose `lora_int_id` this is; open requests keep it. False if there is none."""
        _unsupported("remove_lora")

    async def list_loras(self) -> set[int]:
        """The `lora_int_id` of every adapter that is loaded now."""
        _unsupported("list_loras")

    async def pin_lora(self, lora_id: int) -> bool:
        """Let an adapter never give way to another. False if none has that `lora_int_id`."""
        _unsupported("pin_lora")

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: int = 300) -> None:
        """Change the number of data-parallel ranks."""
        _unsupported("scale_elastic_ep")

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method on every worker."""
        _unsupported("collective_rpc")

    async def init_weight_transfer_engine(self, init_request: Any) -> None:
        """Prepare for weight updates."""
        _unsupported("init_weight_transfer_engine")

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Open a weight update."""
        _unsupported("start_weight_update")

    async def update_weights(self, request: Any) -> None:
        """Send some weights of an open update."""
        _unsupported("update_weights")

    async def finish_weight_update(self) -> None:
        """Close a weight update."""
        _unsupported("finish_weight_update")

    def shutdown(self, timeout: float | None = None) -> None:
        """Tell the engine to stop: refuse new requests, let open ones finish for `timeout` s, abort the rest.

        Idempotent. None or 0 aborts at once. Returns at once; `wait_closed` waits for the end.
        """
        ...

    async def wait_closed(self) -> None:
        """Return when the engine is gone, after `shutdown` or its death."""
        ...
