"""vLLM's `AsyncLLMEngine`: an engine inside a program that has an event loop."""

import asyncio
import atexit
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from vllm.engine.arg_utils import EngineArgs
from vllm.outputs import Pooling, PoolingRequestOutput, RequestOutput, tensor
from vllm.v1.metrics.loggers import LoggingStatLogger
from weft.core.aio.loop_thread import LoopThread
from weft.core.client import EngineClient
from weft.core.config.engine import ModelConfig
from weft.core.observe.metrics import Metrics
from weft.core.values.types import LoRARequest, PoolingParams, PromptType, SamplingParams
from weft.engine.clients.data_parallel import start_engines

T = TypeVar("T")
_STATS_S = 10.0


class AsyncLLM:
    """An engine with an event loop of its own, on a thread: a program may call it from any loop, and `shutdown` waits
    for its end. Calls that are not written here are those of Weft's `EngineClient`, such as `sleep` and `wake_up`.
    """

    def __init__(self, args: EngineArgs, stat_loggers: Sequence[type] = ()) -> None:
        for logger in stat_loggers:
            if not (isinstance(logger, type) and issubclass(logger, LoggingStatLogger)):
                raise NotImplementedError(
                    f"stat_loggers: {logger!r} is not taken; it must be a logger of vllm.v1.metrics.loggers"
                )
        fitted = args.fit()
        self._loop = LoopThread("weft-vllm")
        try:
            self._client = self._loop.wait(
                start_engines(fitted.checkpoint, fitted.config, Metrics())
            )
        except BaseException:
            self._loop.close()
            raise
        self.model_config: ModelConfig = fitted.config.model_config
        if stat_loggers:
            self._loop.submit(_log_stats(self._client))
        atexit.register(self.shutdown)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: Sequence[type] | None = None,
    ) -> "AsyncLLM":
        """Returns a running engine with these options; raises an error for options that cannot be served."""
        del usage_context  # statistics of use are not sent
        if not start_engine_loop:
            raise NotImplementedError("start_engine_loop=False: the engine starts at once")
        return cls(engine_args, stat_loggers or ())

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: LoRARequest | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs until one is finished. Each has the whole answer so far, unless `output_kind` says otherwise.
        Closing the generator aborts the request.
        """
        running = self._outputs(
            lambda: self._client.generate(
                prompt,
                sampling_params,
                str(request_id),
                prompt_text=prompt_text,
                lora_request=lora_request,
                **options,
            )
        )
        async with aclosing(running) as outputs:
            async for output in outputs:
                yield RequestOutput.of(output)

    async def encode(
        self, prompt: PromptType, pooling_params: PoolingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[PoolingRequestOutput[Pooling], None]:
        """Yields one output, whose data are a tensor where torch is installed."""
        running = self._outputs(
            lambda: self._client.encode(prompt, pooling_params, str(request_id), **options)
        )
        async with aclosing(running) as outputs:
            async for one in outputs:
                yield PoolingRequestOutput.of(one, Pooling(tensor(one.data, one.shape)))

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """Aborts requests; ids without a request have no effect."""
        del internal  # ids are always those of callers
        await self._call(self._client.abort(request_id))

    async def get_tokenizer(self) -> Any:
        """Returns the tokenizer, with `encode` and `decode`."""
        return self._client.renderer

    async def get_model_config(self) -> ModelConfig:
        """Returns facts of the model."""
        return self.model_config

    @property
    def is_running(self) -> bool:
        """False after the engine has ended."""
        return not self._loop.is_closed and self._client.is_running

    @property
    def is_stopped(self) -> bool:
        """True after the engine has ended."""
        return not self.is_running

    @property
    def errored(self) -> bool:
        """True if the engine is dead."""
        return self._client.errored

    @property
    def dead_error(self) -> BaseException:
        """The error that every call on a dead engine raises."""
        return self._client.dead_error

    def shutdown(self, timeout: float | None = None) -> None:
        """Stops the engine, and waits for its end; open requests end with an error. Idempotent."""
        del timeout  # processes that do not stop are killed after a fixed time
        if self._loop.is_closed:
            return
        atexit.unregister(self.shutdown)

        async def end() -> None:
            self._client.shutdown()
            await self._client.wait_closed()

        self._loop.wait(end())
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        """Returns a coroutine function of the engine, for calls that have none here."""
        method = None if name.startswith("_") else getattr(EngineClient, name, None)
        if method is None or not asyncio.iscoroutinefunction(method):
            raise AttributeError(f"AsyncLLM of weft-vllm has no {name!r}")

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(getattr(self._client, name)(*args, **kwargs))

        return call

    # -- between the two event loops ----------------------------------------------------------

    async def _outputs(
        self, begin: Callable[[], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """Yields, on the caller's loop, what a generator on the engine's loop yields."""
        caller = asyncio.get_running_loop()
        arrived: asyncio.Queue[T | None] = asyncio.Queue()

        async def pump() -> None:
            try:
                async with aclosing(begin()) as outputs:
                    async for output in outputs:
                        caller.call_soon_threadsafe(arrived.put_nowait, output)
            finally:
                with suppress(RuntimeError):  # the caller's loop has ended
                    caller.call_soon_threadsafe(arrived.put_nowait, None)

        running = self._loop.submit(pump())
        try:
            while (output := await arrived.get()) is not None:
                yield output
            await asyncio.wrap_future(running)  # raises its error
        finally:
            running.cancel()

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._loop.submit(work))


AsyncLLMEngine = AsyncLLM


async def _log_stats(client: EngineClient) -> None:
    while client.is_running:
        await asyncio.sleep(_STATS_S)
        await client.do_log_stats()
