"""`EngineClient`: the one way in which servers and Python callers see an engine, local or remote.

Method names and meanings are those of vLLM's protocol of the same name. A request crosses this seam
once: `prepare` checks it, `run` runs it, and what follows trusts it. What an implementation does not
offer raises `Unsupported`, naming the method.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, NoReturn, Protocol, TypeAlias

from weft.core.config import ModelConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import Unsupported
from weft.core.request_states import RequestStates
from weft.core.speech import ClipOutput, Speech
from weft.core.types import (
    EngineLoad,
    KvEventBatch,
    LoRARequest,
    PauseMode,
    PoolingParams,
    PoolingRequestOutput,
    PromptType,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
    StreamingInput,
)
from weft.core.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest

PromptSource: TypeAlias = PromptType | Callable[[], PromptType]
AnyParams: TypeAlias = SamplingParams | PoolingParams


class Renderer(Protocol):
    """Text to token ids and back, for the served model."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""


class Sink(Protocol):
    """Takes outputs of one request past the task that reads them, on its event loop."""

    @property
    def is_open(self) -> bool:
        """Whether it takes the next output."""

    def take(self, output: RequestOutput) -> None:
        """Take an output; what this raises, the reader gets."""


def _unsupported(method: str) -> NoReturn:
    raise Unsupported(f"{method} is not supported by this engine")


class EngineClient(Protocol):
    """One engine. Every accepted request ends in exactly one finished output or one error."""

    info: EngineInfo
    model_config: ModelConfig
    renderer: Renderer

    # -- requests -----------------------------------------------------------------------------

    def preparing(self, num_answers: int) -> AbstractContextManager[None]:
        """Hold places for a request of so many answers, or refuse it as `run` would.

        For callers whose prompt is work: without a place they would queue for it only to be refused.
        """
        del num_answers
        return nullcontext()

    async def prepare(
        self,
        prompt: PromptSource,
        params: AnyParams,
        options: RequestOptions,
    ) -> Request:
        """Everything about a request that can be refused before the engine has it: check, tokenise, resolve.

        Parameters are checked before the prompt is looked at, or made by the function that is given in
        its place. Raises BadRequest, Unsupported or EngineDead.
        """

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """Run what `prepare` made of sampling parameters: see `generate`."""

    def run_into(self, request: Request, sink: Sink) -> AsyncGenerator[RequestOutput, None]:
        """The same, for readers that may be left to wait: outputs are yielded, or go to the sink while it is open.

        Its last output is always yielded. To wake a reader costs more than all else of a token.
        """
        del sink
        return self.run(request)

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Run what `prepare` made of pooling parameters: see `encode`."""
        _unsupported("encode")

    def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        """Yield what is said in a recording, clip after clip, where `ModelConfig.speech` is not None.

        A long recording is several clips, which are run at once; `params` are for each of them, with one answer.
        Closing the generator aborts all. Raises what `prepare` and `run` do.
        """
        _unsupported("speech to text")

    def run_pieces(
        self,
        pieces: AsyncIterable[StreamingInput],
        params: SamplingParams,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a prompt that comes in pieces: see `generate`."""
        _unsupported("a prompt in pieces")

    async def generate(
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

        A model that reasons before it answers gets its structured output after the reasoning, which
        `reasoning_parser_kwargs={"end": "</think>"}` describes: `end` is the text, 1 to 64
        characters, that the reasoning ends with, and no other key is known. `reasoning_ended` says
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
        options = RequestOptions(
            request_id=request_id,
            prompt_text=prompt_text,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            data_parallel_rank=data_parallel_rank,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=reasoning_parser_kwargs,
        )
        if isinstance(prompt, AsyncIterable):
            running = self.run_pieces(prompt, sampling_params, options)
        else:
            with self.preparing(1):
                request = await self.prepare(prompt, sampling_params, options)
            running = self.run(request)
        async with aclosing(running) as outputs:
            async for output in outputs:
                yield output

    async def encode(
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
        options = RequestOptions(
            request_id=request_id,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            reasoning_ended=reasoning_ended,
        )
        with self.preparing(1):
            request = await self.prepare(prompt, pooling_params, options)
        async with aclosing(self.run_pooling(request)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests by the ids callers gave; unknown and finished ids are no-ops."""

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True until the engine is dead or shut down; also before the first request."""

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has ended: by its death, or after `shutdown`."""

    @property
    def errored(self) -> bool:
        """Whether the engine is dead."""

    @property
    def dead_error(self) -> BaseException:
        """The error every call on a dead engine raises."""

    @property
    def num_active_requests(self) -> int:
        """Requests accepted and not yet finished."""

    async def check_health(self) -> None:
        """Raise `dead_error` if the engine is dead or has stopped making progress."""

    @property
    def is_degraded(self) -> bool:
        """Whether some of several engines are absent: requests are answered, by fewer of them."""
        return False

    async def is_tracing_enabled(self) -> bool:
        """Whether the trace headers of a request are used, here or by the server behind: give them then."""
        return False

    async def do_log_stats(self) -> None:
        """Log one line of load now."""
        _unsupported("do_log_stats")

    async def get_loads(self) -> list[EngineLoad]:
        """The latest load of every data-parallel rank."""

    async def get_request_states(self) -> list[RequestStates]:
        """What every data-parallel rank holds: each answer's phase, times and blocks, and none of its text."""
        _unsupported("get_request_states")

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Yield the prefix cache's changes for ever, from `start_sequence_number` if it is still retained.

        None starts with the next change. Sequence numbers show a gap when the start is too old.
        A subscriber that falls too far behind is ended with `Overloaded`.
        """
        _unsupported("subscribe_kv_events")

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """The tasks of the model: "generate", "embed", ..."""
        return self.info.tasks

    # -- control ------------------------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """Stop scheduling. New requests queue; `mode` decides about those in flight."""
        _unsupported("pause_generation")

    async def resume_generation(self) -> None:
        """Schedule again; a no-op when not paused."""
        _unsupported("resume_generation")

    async def is_paused(self) -> bool:
        """Whether a pause is in force."""

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drop every cached block. False, and no change, while a request holds blocks.

        With `reset_running_requests` those requests are preempted first and recompute later.
        """

    async def reset_mm_cache(self) -> None:
        """Drop what was made of inputs other than text. There is none: models read text only."""
        _unsupported("reset_mm_cache")

    async def reset_encoder_cache(self) -> None:
        """Drop what encoders made of such inputs; there is none either."""
        _unsupported("reset_encoder_cache")

    async def is_sleeping(self) -> bool:
        """Whether scheduling is paused or memory is not resident."""
        return await self.is_paused()

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        """Pause as `mode` says and, from level 1 on, give the memory of weights and KV pool to the system.

        Level 0 keeps memory and cache. From level 1 the very weights come back that were there, from the
        files that they were loaded from; from level 2 those that the model's name stands for then.
        Meanwhile requests wait. Raises FailedPrecondition where the weights could not come back.
        """
        _unsupported("sleep")

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Bring back what `tags` name ("weights", "kv_cache", "scheduling"; None: all). Whether it is awake.

        Once all memory is back, it schedules again. Raises FailedPrecondition, and sleeps on, where the
        files are not those that were loaded or the memory does not suffice.
        """
        _unsupported("wake_up")

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Record a trace of steps, into a new file whose name begins so, in the operator's directory.

        The first `delay_iterations` steps are left out; after `max_iterations` it ends by itself, with 0 not
        before `stop_profile`. None is what the engine was configured with. Raises FailedPrecondition while
        one is being recorded.
        """
        _unsupported("start_profile")

    async def stop_profile(self) -> None:
        """End the trace; without one, a no-op. Raises FailedPrecondition if it could not be written."""
        _unsupported("stop_profile")

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """What each worker answers to a call by name, of the few that there are; there is one worker.

        None of them takes arguments. Raises BadRequest, or DeadlineExceeded after `timeout` seconds.
        """
        _unsupported("collective_rpc")

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        """Serve with so many engines; requests go on meanwhile, and those of engines that leave are finished.

        Returns when it is done. Raises BadRequest, FailedPrecondition where there are not the threads or the
        memory for more, and DeadlineExceeded, with all engines as before, where requests of those that were
        to leave take longer than `drain_timeout` seconds.
        """
        _unsupported("scale_elastic_ep")

    async def is_scaling_elastic_ep(self) -> bool:
        """Whether the number of engines is being changed."""
        return False

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        data_parallel_rank: int | None = None,
    ) -> None:
        """A request with these parameters came and was refused: the engine that computed its prompt may forget it.

        Requests that `run` was given need no such call, whatever becomes of them.
        """
        _unsupported("notify_kv_transfer_request_rejected")

    async def init_weight_transfer_engine(self, request: WeightTransferInitRequest) -> None:
        """A program is about to send weights, as the engine's `--weight-transfer-config` says.

        It takes no `init_info`. Raises Unsupported without that configuration, FailedPrecondition for a model
        that was not read from safetensors files.
        """
        _unsupported("init_weight_transfer_engine")

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Begin an update; FailedPrecondition if one is open. Names and forms are the checkpoint's."""
        _unsupported("start_weight_update")

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        """Take some tensors, in any number of calls; each is one that the checkpoint has, in shape and type.

        With shared memory `update_info` has `segment`, `names`, `dtype_names`, `shapes` and `offsets`
        (without: one behind the other), and the segment may be used again afterwards. With safetensors it has
        `path`, a file or a directory below the allowed one, which stays until the update is finished.
        What is refused ends the update: nothing of it is served.
        """
        _unsupported("update_weights")

    async def finish_weight_update(self) -> None:
        """Serve what was sent, whole, from the next step on; or nothing of it, and the former weights go on.

        Requests that are frozen by pause mode "keep" go on with the new weights, from keys and values that
        are computed anew; while others run this is FailedPrecondition. No cached prefix of the former
        weights is found again, and adapters apply to the new ones.
        """
        _unsupported("finish_weight_update")

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        """The adapters that requests may name, by name."""
        return {}

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter; True once requests may name it.

        One that is there already, under the same name and path, stays as it is; `load_inplace` loads
        it again, and whatever was cached with the former one is found no more. When as many as may be
        are loaded, the least recently used one is unloaded, and loaded again when it is requested; while
        all of them are in use, this waits. Raises NotFound or BadRequest.
        """
        _unsupported("add_lora")

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget the adapter whose `lora_int_id` this is; open requests keep it. False if there is none."""
        _unsupported("remove_lora")

    async def list_loras(self) -> set[int]:
        """The `lora_int_id` of every adapter that is loaded now."""
        _unsupported("list_loras")

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter loaded whatever else is. False if none has that `lora_int_id`."""
        _unsupported("pin_lora")

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the engine: refuse new requests, let open ones finish for `timeout` s, abort the rest.

        Idempotent. None or 0 aborts at once. Returns at once; `wait_closed` waits for the end.
        """
        _unsupported("shutdown")

    async def wait_closed(self) -> None:
        """Return when the engine has exited, after `shutdown` or its death."""
