"""`EngineClient`: the only interface between servers or Python callers and an engine, local or remote.

Method names and meanings are those of vLLM's protocol of the same name. Each request is checked once, by `prepare`;
`run` and all code behind it trust the checked request. A method that an implementation does not offer raises
`Unsupported`, naming the method.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, NoReturn, Protocol, TypeAlias

from weft.core.config.engine import ModelConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import Unsupported
from weft.core.values.request_states import RequestStates
from weft.core.values.speech import ClipOutput, Speech
from weft.core.values.types import (
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
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest

PromptSource: TypeAlias = PromptType | Callable[[], PromptType]
AnyParams: TypeAlias = SamplingParams | PoolingParams


class Renderer(Protocol):
    """Conversion of text to token ids and back, for the served model."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""


class Sink(Protocol):
    """Receives outputs of one request directly, on the event loop of the task that reads them, without waking that
    task.
    """

    @property
    def is_open(self) -> bool:
        """True if the sink accepts the next output."""

    def take(self, output: RequestOutput) -> None:
        """Takes an output; an exception that this raises goes to the reader."""


def _unsupported(method: str) -> NoReturn:
    raise Unsupported(f"{method} is not supported by this engine")


class EngineClient(Protocol):
    """An engine. Every accepted request ends in exactly one finished output or one error."""

    info: EngineInfo
    model_config: ModelConfig
    renderer: Renderer

    # -- requests -----------------------------------------------------------------------------

    def preparing(self, num_answers: int) -> AbstractContextManager[None]:
        """Reserves places for a request of `num_answers` answers, or refuses the request as `run` would.

        For callers that do much work to make the prompt: without a reservation they would do it for requests that are
        refused afterwards.
        """
        del num_answers
        return nullcontext()

    async def prepare(
        self,
        prompt: PromptSource,
        params: AnyParams,
        options: RequestOptions,
    ) -> Request:
        """Checks, tokenizes and resolves a request: all that can be refused before the engine gets it.

        Parameters are checked before the prompt is read, or before it is made if `prompt` is a function. Raises
        BadRequest, Unsupported or EngineDead.
        """

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request that `prepare` made with sampling parameters; see `generate` for the outputs."""

    def run_into(self, request: Request, sink: Sink) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request like `run`; an output goes to the sink while it is open, and is yielded otherwise.

        The last output is always yielded. The sink saves waking the reader, which costs more than all other work for
        a token.
        """
        del sink
        return self.run(request)

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Runs a request that `prepare` made with pooling parameters; see `encode` for the output."""
        _unsupported("encode")

    def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        """Yields the transcript of a recording, clip by clip, for a model whose `ModelConfig.speech` is not None.

        A long recording is split into clips, which run at once; `params` apply to each of them, with one answer.
        Closing the generator aborts all clips. Raises the errors of `prepare` and `run`.
        """
        _unsupported("speech to text")

    def run_pieces(
        self,
        pieces: AsyncIterable[StreamingInput],
        params: SamplingParams,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a prompt that arrives in pieces; see `generate`."""
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
        """Yields outputs until one has `is_finished`. Closing the generator aborts the request.

        Smaller `priority` runs sooner under the priority policy. `prompt_text` only fills `RequestOutput.prompt`.

        For a model that reasons before it answers, a structured-output constraint starts after the reasoning.
        `reasoning_parser_kwargs={"end": "</think>"}` describes the reasoning: `end` is the text of 1 to 64 characters
        that ends it; other keys are refused. `reasoning_ended` says whether the prompt already contains the end of
        the reasoning; None checks whether the prompt's text ends with `end`, ignoring spaces. With True, or without
        either argument, the constraint starts with the first token; False needs `end`. Text that follows `end` within
        the same token is not checked.

        A prompt may arrive in pieces while answers are generated. Each piece is answered in turn; the last output of
        such an answer has a `finish_reason` but is not finished, and `sampling_params` start anew. A piece continues
        the whole text before it, except the last token of the previous answer. After the last piece, the last answer
        is finished, or an empty finished output follows. Requests in pieces have one answer, and cannot use
        "final_only", `stop`, truncation or reasoning.

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
        """Yields one output: the result of the pooling task for the prompt.

        Raises BadRequest, Overloaded, EngineDead, or Unsupported for a model that generates text.
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
        """Aborts requests by the ids that callers gave; unknown and finished ids are no-ops."""

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True until the engine is dead or shut down, also before the first request."""

    @property
    def is_stopped(self) -> bool:
        """True if the engine has ended, because it died or was shut down."""

    @property
    def errored(self) -> bool:
        """True if the engine is dead."""

    @property
    def dead_error(self) -> BaseException:
        """The error that every call on a dead engine raises."""

    @property
    def num_active_requests(self) -> int:
        """Number of accepted requests that have not finished."""

    async def check_health(self) -> None:
        """Raises `dead_error` if the engine is dead or makes no progress any more."""

    @property
    def is_degraded(self) -> bool:
        """True if some of several engines are absent; the others answer all requests."""
        return False

    async def is_tracing_enabled(self) -> bool:
        """True if this process or the server behind it uses trace headers; only then do callers pass them."""
        return False

    async def do_log_stats(self) -> None:
        """Logs one line of load now."""
        _unsupported("do_log_stats")

    async def get_loads(self) -> list[EngineLoad]:
        """Returns the latest load of every data-parallel rank."""

    async def get_request_states(self) -> list[RequestStates]:
        """Returns the requests of every data-parallel rank: phase, times and blocks of each answer, but no text."""
        _unsupported("get_request_states")

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Yields changes of the prefix cache without end, from `start_sequence_number` on if that is still buffered.

        None starts with the next change. Sequence numbers have a gap if the start is no longer buffered. A subscriber
        that falls too far behind gets `Overloaded`, which ends the subscription.
        """
        _unsupported("subscribe_kv_events")

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Returns the tasks of the model: "generate", "embed", ..."""
        return self.info.tasks

    # -- control ------------------------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """Stops scheduling. New requests wait in the queue; `mode` decides about requests in flight."""
        _unsupported("pause_generation")

    async def resume_generation(self) -> None:
        """Starts scheduling again; a no-op when not paused."""
        _unsupported("resume_generation")

    async def is_paused(self) -> bool:
        """True while generation is paused."""

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drops every cached block. Returns False, without any change, while a request holds blocks.

        With `reset_running_requests` those requests are preempted first and computed again later.
        """

    async def reset_mm_cache(self) -> None:
        """Drops cached inputs of media. This method is here for callers of vLLM's protocol."""
        _unsupported("reset_mm_cache")

    async def reset_encoder_cache(self) -> None:
        """Drops cached outputs of encoders of media."""
        _unsupported("reset_encoder_cache")

    async def is_sleeping(self) -> bool:
        """True if scheduling is paused or the memory of weights or KV pool was given back."""
        return await self.is_paused()

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        """Pauses as `mode` says and, from level 1 on, gives the memory of weights and KV pool back to the system.

        Level 0 keeps memory and cache. After level 1 the same weights are restored, from the files that they were
        loaded from; after level 2, the weights that the model's name stands for at that time. Requests wait until the
        engine wakes. Raises FailedPrecondition if the weights could not be restored.
        """
        _unsupported("sleep")

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Restores the parts in `tags` ("weights", "kv_cache", "scheduling"; None: all). Returns True if the engine
        is awake.

        The engine schedules again once all memory is restored. Raises FailedPrecondition, and stays asleep, if the
        files are not the loaded ones or if there is too little memory.
        """
        _unsupported("wake_up")

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Records a trace of steps into a new file in the operator's directory; its name begins with
        `profile_prefix`.

        The first `delay_iterations` steps are left out. The trace ends after `max_iterations` steps; with 0, only at
        `stop_profile`. None stands for the engine's configured value. Raises FailedPrecondition while another trace
        is recorded.
        """
        _unsupported("start_profile")

    async def stop_profile(self) -> None:
        """Ends the trace; a no-op without one. Raises FailedPrecondition if the trace could not be written."""
        _unsupported("stop_profile")

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of each worker by name and returns their results; there is one worker and a few methods.

        No method takes arguments. Raises BadRequest, or DeadlineExceeded after `timeout` seconds.
        """
        _unsupported("collective_rpc")

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        """Changes the number of engines. Requests go on meanwhile; engines that leave finish their requests first.

        Returns when the change is complete. Raises BadRequest; FailedPrecondition if threads or memory do not suffice
        for more engines; and DeadlineExceeded, with all engines as before, if requests of leaving engines take longer
        than `drain_timeout` seconds.
        """
        _unsupported("scale_elastic_ep")

    async def is_scaling_elastic_ep(self) -> bool:
        """True while the number of engines is being changed."""
        return False

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        data_parallel_rank: int | None = None,
    ) -> None:
        """Reports that a request with these parameters was refused, so that the prefill engine can free its blocks.

        Requests that were passed to `run` need no such call, whatever their outcome.
        """
        _unsupported("notify_kv_transfer_request_rejected")

    async def init_weight_transfer_engine(self, request: WeightTransferInitRequest) -> None:
        """Prepares for weight updates, as the engine's `--weight-transfer-config` configures them.

        `init_info` must be empty. Raises Unsupported without that configuration, and FailedPrecondition for a model
        that was not loaded from safetensors files.
        """
        _unsupported("init_weight_transfer_engine")

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Begins an update; FailedPrecondition if one is open. Tensors have the checkpoint's names and formats."""
        _unsupported("start_weight_update")

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        """Takes some tensors of the update, in any number of calls; each has the name, shape and type of one in the
        checkpoint.

        With shared memory `update_info` has `segment`, `names`, `dtype_names`, `shapes` and `offsets` (without
        `offsets`, tensors follow each other); the caller may reuse the segment after the call. With safetensors it
        has `path`, a file or directory below the allowed directory, which must exist until the update is finished. A
        refused call ends the update: none of its tensors is served.
        """
        _unsupported("update_weights")

    async def finish_weight_update(self) -> None:
        """Serves all updated weights from the next step on; on an error the former weights stay in use.

        Requests that pause mode "keep" has frozen continue with the new weights, and their KV is computed again;
        while other requests run, this raises FailedPrecondition. Cached prefixes of the former weights are not
        reused, and adapters apply to the new weights.
        """
        _unsupported("finish_weight_update")

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        """Adapters that requests may name, by name."""
        return {}

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter; returns True once requests may name it.

        An adapter that is loaded under the same name and path stays as it is; with `load_inplace` it is loaded again,
        and prefixes cached with the former one are not reused. When the maximum number is loaded, the least recently
        used adapter is unloaded, and loaded again when it is requested; while all of them are in use, this waits.
        Raises NotFound or BadRequest.
        """
        _unsupported("add_lora")

    async def remove_lora(self, lora_id: int) -> bool:
        """Removes the adapter with this `lora_int_id`; open requests keep it. Returns False if there is none."""
        _unsupported("remove_lora")

    async def list_loras(self) -> set[int]:
        """Returns the `lora_int_id` of every loaded adapter."""
        _unsupported("list_loras")

    async def pin_lora(self, lora_id: int) -> bool:
        """Keeps an adapter loaded even when others must be unloaded. Returns False if none has that `lora_int_id`."""
        _unsupported("pin_lora")

    def shutdown(self, timeout: float | None = None) -> None:
        """Stops the engine: refuses new requests, lets open ones finish for `timeout` seconds, aborts the rest.

        Idempotent. None or 0 aborts at once. Returns immediately; `wait_closed` waits for the end.
        """
        _unsupported("shutdown")

    async def wait_closed(self) -> None:
        """Returns when the engine has exited, after `shutdown` or its death."""
