"""`EngineControls`: an operator's calls to one engine.

The state that is kept here follows the engine's replies: a call is followed to its reply even if its caller is
cancelled.
"""

import asyncio
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.core.aio.tasks import unbroken
from weft.core.checks.validate import validate_params
from weft.core.config.elastic import refuse_draining, refuse_scaling
from weft.core.config.engine import EngineConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import BadRequest, DeadlineExceeded, FailedPrecondition, Key
from weft.core.observe.metrics import EngineMetrics
from weft.core.operator_calls import PROFILER_FLAG, TRANSFER_FLAG, OperatorCalls, check_flag
from weft.core.values.controls import (
    Drained,
    PauseMode,
    check_sleep_level,
    read_pause_mode,
    read_sleep_tags,
)
from weft.core.values.engine_snapshots import RequestStates
from weft.core.values.kv_transfer import remote_prompt, to_extra_args
from weft.core.values.pictures import ItemPreparer
from weft.core.values.types import LoRARequest, SamplingParams
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.engine.front.calls import EngineCalls
from weft.engine.front.lora_table import LoraTable
from weft.engine.front.sent_weights import to_update
from weft.engine.ipc.messages import (
    CallWorker,
    FinishWeightUpdate,
    InitWeightTransfer,
    Pause,
    ReleaseRemote,
    Reply,
    ResetPrefixCache,
    ResetTowerOutputs,
    Resume,
    StartProfile,
    StartWeightUpdate,
    StopProfile,
    UpdateWeights,
    Wake,
)
from weft.engine.worker_calls import WORKER_CALLS

log = logging.getLogger("weft.engine")

MAX_ITERATIONS = 1_000_000
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class EngineControls(OperatorCalls):
    """Checks calls, sends them to the engine and follows their replies."""

    def __init__(
        self,
        config: EngineConfig,
        calls: EngineCalls,
        loras: LoraTable,
        metrics: EngineMetrics | None,
        pictures: ItemPreparer | None = None,
    ) -> None:
        self._limits = EngineInfo.of(config).limits
        self._transfer = config.weight_transfer_config
        flags = {PROFILER_FLAG: config.profiler_config, TRANSFER_FLAG: self._transfer}
        self._flags = [flag for flag, given in flags.items() if given is not None]
        self._calls = calls
        self._loras = loras
        self._metrics = metrics
        self._pictures = pictures
        self._is_paused = False
        self._num_pausing = 0
        self._sleep_level = 0

    async def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
        check_flag(name, self._flags)
        return await super().answer(name, *arguments, **named)

    async def get_request_states(self) -> list[RequestStates]:
        """Returns the engine's request states; a busy engine returns its last answer."""
        self._calls.check_alive()
        return [await self._calls.request_states()]

    # -- scheduling and memory ----------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """Pauses the engine. `wait_for_inflight_requests` is the older spelling of mode "wait"."""
        chosen = read_pause_mode(mode, is_wait=wait_for_inflight_requests)
        await unbroken(self._pause(chosen, is_clearing=clear_cache))

    async def _pause(self, mode: PauseMode, *, is_clearing: bool, sleep_level: int = 0) -> Reply:
        self._num_pausing += 1
        try:
            reply = await self._calls.call(Pause, mode.value, is_clearing, sleep_level)
            self._is_paused = self._is_paused or reply.is_done
            return reply
        finally:
            self._num_pausing -= 1

    async def resume_generation(self) -> None:
        await unbroken(self._resume())

    async def _resume(self) -> None:
        await self._calls.call(Resume)
        self._is_paused = False

    async def is_paused(self) -> bool:
        return self._is_paused or self._num_pausing > 0

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        check_sleep_level(level)
        chosen = read_pause_mode(mode)
        await unbroken(self._sleep(level, chosen))

    async def _sleep(self, level: int, mode: PauseMode) -> None:
        reply = await self._pause(mode, is_clearing=False, sleep_level=level)
        if not reply.is_done:
            raise FailedPrecondition("the engine was resumed before it slept")
        self._set_sleep_level(max(level, self._sleep_level))

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        return await unbroken(self._wake(read_sleep_tags(tags)))

    async def _wake(self, tags: list[str]) -> bool:
        reply = await self._calls.call(Wake, tags)
        if reply.is_done:
            self._is_paused = False
            self._set_sleep_level(0)
        return reply.is_done

    def _set_sleep_level(self, level: int) -> None:
        self._sleep_level = level
        if self._metrics is not None:
            self._metrics.sleep_level = level

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        del new_data_parallel_size, drain_timeout
        refuse_scaling()

    async def drain(
        self, data_parallel_ranks: Sequence[int], timeout: float = 300.0
    ) -> list[Drained]:
        del data_parallel_ranks, timeout
        refuse_draining()

    async def undrain(self, data_parallel_ranks: Sequence[int]) -> None:
        del data_parallel_ranks
        refuse_draining()

    # -- caches, profiles, calls by name ------------------------------------------------------

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drops every cached block. `reset_connector` is accepted and has no effect."""
        del reset_connector
        return (await self._calls.call(ResetPrefixCache, reset_running_requests)).is_done

    async def reset_mm_cache(self) -> None:
        self._calls.check_alive()
        if self._pictures is not None:
            self._pictures.clear()

    async def reset_encoder_cache(self) -> None:
        await self._calls.call(ResetTowerOutputs)

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
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
        await self._calls.call(StartProfile, profile_prefix=profile_prefix, **counts)

    async def stop_profile(self) -> None:
        await self._calls.call(StopProfile)

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
                reply = await self._calls.call(CallWorker, method)
        except TimeoutError:
            raise DeadlineExceeded(f"{method} has not answered within {timeout:g} s") from None
        return [reply.result]

    # -- transfers and weights ----------------------------------------------------------------

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        data_parallel_rank: int | None = None,
    ) -> None:
        self._calls.check_alive()
        extra_args = to_extra_args(kv_transfer_params)
        validate_params(SamplingParams(extra_args=extra_args), self._limits)
        log.debug("a process refused a request, request_id=%s", request_id)
        source = remote_prompt(extra_args)
        if source is not None:
            self._calls.post(ReleaseRemote(source))

    async def init_weight_transfer_engine(self, request: WeightTransferInitRequest) -> None:
        assert self._transfer is not None
        if request.init_info:
            message = f"Invalid init_info for {self._transfer.backend}: it has no keys"
            raise BadRequest("init_info", message)
        await self._calls.call(InitWeightTransfer)

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        if is_checkpoint_format is not True:
            message = (
                "is_checkpoint_format must be true: tensors have the checkpoint's names and shapes"
            )
            raise BadRequest("is_checkpoint_format", message)
        await self._calls.call(StartWeightUpdate)

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        assert self._transfer is not None
        await self._calls.call(UpdateWeights, *to_update(self._transfer, request))

    async def finish_weight_update(self) -> None:
        await self._calls.call(FinishWeightUpdate)

    # -- adapters -----------------------------------------------------------------------------

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        self._calls.check_alive()
        await self._loras.add(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        self._calls.check_alive()
        return self._loras.remove(lora_id)

    async def list_loras(self) -> set[int]:
        return self._loras.loaded_ids

    async def pin_lora(self, lora_id: int) -> bool:
        self._calls.check_alive()
        return await self._loras.pin(lora_id)
