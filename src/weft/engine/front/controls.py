"""`EngineControls`: the calls by which an operator pauses an engine, resets its caches and puts it to sleep.

The client's view of the engine's state follows the engine's replies: a call is followed to its reply even if its
caller is cancelled.
"""

import asyncio
import logging
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.core.aio.tasks import unbroken
from weft.core.checks.validate import validate_params
from weft.core.client import EngineClient
from weft.core.config.elastic import refuse_scaling
from weft.core.config.engine import EngineConfig
from weft.core.errors import (
    BadRequest,
    DeadlineExceeded,
    FailedPrecondition,
    Key,
    Unsupported,
    WeftError,
)
from weft.core.observe.metrics import EngineMetrics
from weft.core.values.controls import check_sleep_level, read_pause_mode, read_sleep_tags
from weft.core.values.kv_transfer import RemotePrompt, remote_prompt, to_extra_args
from weft.core.values.request_states import RequestStates
from weft.core.values.types import LoRARequest, PauseMode, SamplingParams
from weft.core.values.weight_transfer import (
    WeightTransferConfig,
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from weft.engine.front.calls import EngineCalls
from weft.engine.front.lora_table import LoraTable
from weft.engine.front.sent_weights import to_update
from weft.engine.ipc.messages import (
    AddLora,
    Call,
    CallWorker,
    Command,
    FinishWeightUpdate,
    InitWeightTransfer,
    Pause,
    ReleaseRemote,
    Reply,
    ResetPrefixCache,
    Resume,
    StartProfile,
    StartWeightUpdate,
    StopProfile,
    UseShare,
    Wake,
)
from weft.engine.ipc.weight_files import PackedWeights
from weft.engine.start.cpu_shares import cpus_of
from weft.engine.weights.weight_transfer import FLAG as TRANSFER_FLAG
from weft.engine.worker_calls import WORKER_CALLS

log = logging.getLogger("weft.engine")

MAX_ITERATIONS = 1_000_000
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class EngineControls(EngineClient):
    """Part of `FrontClient` that only sends calls and waits for their replies."""

    vllm_config: EngineConfig
    _calls: EngineCalls
    _metrics: EngineMetrics | None
    _is_paused = False
    _num_pausing = 0
    _sleep_level = 0
    _dead_error: WeftError | None
    _loras: LoraTable

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hands a command to the engine; never blocks."""

    @abstractmethod
    def _check_alive(self) -> None:
        """Raises if the engine is dead or shuts down."""

    async def is_tracing_enabled(self) -> bool:
        return self._metrics is not None and self._metrics.traces is not None

    async def get_request_states(self) -> list[RequestStates]:
        """See `EngineClient`. A busy engine returns its last answer."""
        self._check_alive()
        return [await self._calls.request_states()]

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """See `EngineClient`. `wait_for_inflight_requests` is the older spelling of mode "wait"."""
        chosen = read_pause_mode(mode, is_wait=wait_for_inflight_requests)
        await unbroken(self._pause(Pause(self._calls.next_id(), chosen.value, clear_cache)))

    async def resume_generation(self) -> None:
        await unbroken(self._resume())

    async def _resume(self) -> None:
        await self._checked(Resume(self._calls.next_id()))
        self._is_paused = False

    async def is_paused(self) -> bool:
        return self._is_paused or self._num_pausing > 0

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        check_sleep_level(level)
        chosen = read_pause_mode(mode)
        await unbroken(self._sleep(level, chosen))

    async def _sleep(self, level: int, mode: PauseMode) -> None:
        reply = await self._pause(Pause(self._calls.next_id(), mode.value, False, level))
        if not reply.is_done:
            raise FailedPrecondition("the engine was resumed before it slept")
        self._set_sleep_level(max(level, self._sleep_level))

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        return await unbroken(self._wake(read_sleep_tags(tags)))

    async def _wake(self, tags: list[str]) -> bool:
        reply = await self._checked(Wake(self._calls.next_id(), tags))
        if reply.is_done:
            self._is_paused = False
            self._set_sleep_level(0)
        return reply.is_done

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """See `EngineClient`. `reset_connector` is accepted and has no effect."""
        del reset_connector
        reply = await self._call(ResetPrefixCache(self._calls.next_id(), reset_running_requests))
        return reply.is_done

    async def reset_mm_cache(self) -> None:
        self._check_alive()

    async def reset_encoder_cache(self) -> None:
        self._check_alive()

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        self._check_profiler("start_profile")
        if profile_prefix is not None and not _PREFIX.fullmatch(profile_prefix):
            raise BadRequest(
                "profile_prefix",
                "profile_prefix takes 1 to 64 letters, digits, dots, dashes and underscores, and begins "
                f"with a letter or digit; got {profile_prefix[:80]!a}",
            )
        counts = {"delay_iterations": delay_iterations, "max_iterations": max_iterations}
        for name, count in counts.items():
            if count is not None and not 0 <= count <= MAX_ITERATIONS:
                message = (Key(name), f" must be from 0 to {MAX_ITERATIONS}, got {count}")
                raise BadRequest(name, message)
        call_id = self._calls.next_id()
        await self._checked(StartProfile(call_id=call_id, profile_prefix=profile_prefix, **counts))

    async def use_share(self, config: EngineConfig) -> None:
        """Uses the CPUs that `config` gives to this rank."""
        assert config.compute_config is not None
        num_threads = config.compute_config.num_threads
        await self._call(UseShare(self._calls.next_id(), cpus_of(config), num_threads))
        self.vllm_config = config

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        del new_data_parallel_size, drain_timeout
        refuse_scaling()

    async def stop_profile(self) -> None:
        self._check_profiler("stop_profile")
        await self._checked(StopProfile(self._calls.next_id()))

    def _check_profiler(self, method: str) -> None:
        if self.vllm_config.profiler_config is None:
            raise _needs("--profiler-config", method)

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        if method not in WORKER_CALLS:
            known = ", ".join(WORKER_CALLS)
            raise BadRequest("method", f"method must be one of {known}, got {method[:80]!a}")
        for name, given in (("args", args), ("kwargs", kwargs)):
            if given:
                raise BadRequest(name, f"{name} must be empty: {method} takes no arguments")
        if timeout is not None and not 0 < timeout < math.inf:
            raise BadRequest("timeout", f"timeout must be above 0 seconds, got {timeout}")
        try:
            async with asyncio.timeout(timeout):
                reply = await self._checked(CallWorker(self._calls.next_id(), method))
        except TimeoutError:
            raise DeadlineExceeded(f"{method} has not answered within {timeout:g} s") from None
        return [reply.result]

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        data_parallel_rank: int | None = None,
    ) -> None:
        self._check_alive()
        extra_args = to_extra_args(kv_transfer_params)
        validate_params(SamplingParams(extra_args=extra_args), self.info.limits)
        log.debug("a process refused a request, request_id=%s", request_id)
        self._release_remote(SamplingParams(extra_args=extra_args))

    def _release_remote(self, params: SamplingParams) -> None:
        """The engine will not get the request: releases its prompt's KV blocks, if another engine lends them."""
        source = remote_prompt(params.extra_args)
        if source is not None:
            self.release_remote(source)

    def release_remote(self, source: RemotePrompt) -> None:
        """Releases KV blocks that another engine lends for a request which no engine gets. No-op if the engine is
        dead.
        """
        if self._dead_error is None:
            self._send(ReleaseRemote(source))

    def _set_sleep_level(self, level: int) -> None:
        self._sleep_level = level
        if self._metrics is not None:
            self._metrics.sleep_level = level

    async def _pause(self, command: Pause) -> Reply:
        self._num_pausing += 1
        try:
            reply = await self._checked(command)
            self._is_paused = self._is_paused or reply.is_done
            return reply
        finally:
            self._num_pausing -= 1

    async def _checked(self, command: Call) -> Reply:
        reply = await self._call(command)
        if reply.refusal is not None:
            raise FailedPrecondition(reply.refusal)
        return reply

    async def _call(self, command: Call) -> Reply:
        self._check_alive()
        return await self._calls.send(command)

    # -- weights ------------------------------------------------------------------------------

    async def init_weight_transfer_engine(self, request: WeightTransferInitRequest) -> None:
        config = self._transfer_config("init_weight_transfer_engine")
        if request.init_info:
            message = f"Invalid init_info for {config.backend}: it has no keys"
            raise BadRequest("init_info", message)
        await self._checked(InitWeightTransfer(self._calls.next_id()))

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        self._transfer_config("start_weight_update")
        if is_checkpoint_format is not True:
            message = (
                "is_checkpoint_format must be true: tensors have the checkpoint's names and shapes"
            )
            raise BadRequest("is_checkpoint_format", message)
        await self._checked(StartWeightUpdate(self._calls.next_id()))

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        config = self._transfer_config("update_weights")
        await self._checked(to_update(config, request, self._calls.next_id()))

    async def finish_weight_update(self) -> None:
        self._transfer_config("finish_weight_update")
        await self._checked(FinishWeightUpdate(self._calls.next_id()))

    async def finish_packed_update(self, packed: PackedWeights, *, is_elsewhere: bool) -> None:
        """`finish_weight_update` for one of several engines; see `FinishWeightUpdate`."""
        await self._checked(FinishWeightUpdate(self._calls.next_id(), packed, is_elsewhere))

    def _transfer_config(self, method: str) -> WeightTransferConfig:
        config = self.vllm_config.weight_transfer_config
        if config is None:
            raise _needs(TRANSFER_FLAG, method)
        return config

    # -- adapters -----------------------------------------------------------------------------

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        return {} if self.vllm_config.lora_config is None else self._loras.requests

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        self._check_alive()
        await self._loras.add(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        self._check_alive()
        return self._loras.remove(lora_id)

    async def list_loras(self) -> set[int]:
        return self._loras.loaded_ids

    async def pin_lora(self, lora_id: int) -> bool:
        self._check_alive()
        return await self._loras.pin(lora_id)

    def _load_lora(self, lora_id: int, path: str) -> asyncio.Future[Reply]:
        return self._calls.send(AddLora(self._calls.next_id(), lora_id, path))


def _needs(flag: str, method: str) -> Unsupported:
    return Unsupported(f"{method} is not supported: the engine was started without {flag}")
