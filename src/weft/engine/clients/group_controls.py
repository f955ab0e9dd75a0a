"""`GroupControls`: an operator's calls to several engines, and the state that a joining engine is brought to.

A call returns when all engines have answered. A call that changes the engines continues even if its caller is
cancelled; otherwise the group's record of the state would be wrong. An engine that dies during the call is ignored,
unless no engine is left. If an engine refuses, the call raises the engine's error, and the changes of the other engines
stay: such a call can be repeated.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from weft.core.aio.tasks import gather_available, unbroken
from weft.core.errors import FailedPrecondition, Unavailable, WeftError
from weft.core.operator_calls import CALLS, OperatorCalls, passed_on
from weft.core.values.controls import PauseMode
from weft.core.values.pictures import ItemPreparer
from weft.core.values.types import LoRARequest
from weft.core.values.weight_transfer import (
    WeightTransferConfig,
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from weft.engine.front.client import FrontClient
from weft.engine.ipc.weight_files import PackedWeights, WeightFiles
from weft.engine.weights.engine_model import DISCARD

log = logging.getLogger("weft.engine")

T = TypeVar("T")


class GroupControls(OperatorCalls):
    """Controls of several engines. `engines` returns the clients of the live engines, and raises if no engine is live.

    `weights` are the weight files that the engines share. Without these, `has_lasting_weights` is False once weights
    were sent to an engine: an engine that is started again does not have them. `pictures` prepares the pictures of all
    prompts.
    """

    def __init__(
        self, engines: Callable[[], list[FrontClient]], transfer: WeightTransferConfig | None
    ) -> None:
        self._engines = engines
        self._transfer = transfer
        self._adapters: dict[int, LoRARequest] = {}
        self._pinned: set[int] = set()
        self._is_paused = False
        self._sleep_level = 0
        self._num_pausing = 0
        self._resuming = (
            asyncio.Lock()
        )  # held to resume, and to replace weights: never both at once
        self.weights: WeightFiles | None = None
        self.has_lasting_weights = True
        self.pictures: ItemPreparer | None = None  # belongs to the client of all engines

    async def each(self, call: Callable[[FrontClient], Awaitable[T]]) -> list[T]:
        """Returns the answers of all live engines; leaves out engines that become unavailable during the call."""
        return await gather_available(call(engine) for engine in self._engines())

    async def reset_mm_cache(self) -> None:
        self._engines()
        if self.pictures is not None:
            self.pictures.clear()

    async def pass_on(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls `method` of all engines and merges their answers into one."""
        answers = await self.each(lambda engine: getattr(engine, method)(*arguments, **named))
        return CALLS[method].merge(answers)

    @property
    def weights_key(self) -> str | None:
        """Identifier of the current weights; None if the engines do not share weights."""
        return None if self.weights is None else self.weights.current.key

    def check_weights(self, key: str | None) -> None:
        """Raises if the weights were replaced since an engine was started: this engine must not join with old
        weights.
        """
        if key != self.weights_key:
            raise Unavailable("the weights were replaced while an engine was started")

    async def catch_up(self, *engines: FrontClient) -> None:
        """Brings newly started engines to the state of the other engines: adapters, pause, sleep level."""
        known = dict(self._adapters)
        for engine in engines:
            await self._load_adapters(engine, known)
        state = (False, 0)
        while state != (
            self.may_be_paused,
            self._sleep_level,
        ):  # the state may change during the call
            state = is_paused, level = self.may_be_paused, self._sleep_level
            for engine in engines:
                if level:
                    await engine.sleep(level)
                elif is_paused:
                    await engine.pause_generation()
                else:
                    await engine.wake_up()
        for lora_id, adapter in known.items():
            if (
                self._adapters.get(lora_id) is not adapter
            ):  # the adapter was removed or replaced during the call
                for engine in engines:
                    await engine.remove_lora(lora_id)

    async def _load_adapters(
        self, engine: FrontClient, adapters: Mapping[int, LoRARequest]
    ) -> None:
        for lora_id, adapter in adapters.items():
            try:
                await engine.add_lora(adapter)
                if lora_id in self._pinned:
                    await engine.pin_lora(lora_id)
            except WeftError as error:  # requests that name the adapter get this error too
                log.warning("%s", error)

    collective_rpc = passed_on("collective_rpc")
    get_request_states = passed_on("get_request_states")
    init_weight_transfer_engine = passed_on("init_weight_transfer_engine")
    is_paused = passed_on("is_paused")
    list_loras = passed_on("list_loras")
    reset_encoder_cache = passed_on("reset_encoder_cache")
    reset_prefix_cache = passed_on("reset_prefix_cache")
    start_profile = passed_on("start_profile")  # each engine writes its own file
    start_weight_update = passed_on("start_weight_update")
    stop_profile = passed_on("stop_profile")

    # -- scheduling and memory ----------------------------------------------------------------

    async def pause_generation(self, **options: Any) -> None:
        await unbroken(self._pause("pause_generation", **options))

    async def resume_generation(self) -> None:
        await unbroken(self._resume())

    async def _resume(self) -> None:
        async with self._resuming:
            await self.pass_on("resume_generation")
            self._is_paused = False

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        await unbroken(self._sleep(level, mode))

    async def _sleep(self, level: int, mode: PauseMode | str) -> None:
        await self._pause("sleep", level, mode)
        self._sleep_level = max(level, self._sleep_level)
        if level == DISCARD and self.weights is not None:
            self.weights.read_anew()

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Wakes all engines. An engine that lacks memory stays asleep, while the others wake."""
        return await unbroken(self._wake(None if tags is None else list(tags)))

    async def _wake(self, named: list[str] | None) -> bool:
        async with self._resuming:
            is_awake: bool = await self.pass_on("wake_up", named)
            if is_awake:
                self._is_paused, self._sleep_level = False, 0
        return is_awake

    @property
    def may_be_paused(self) -> bool:
        """True if the engines are paused, or if a call that pauses them is in progress."""
        return self._is_paused or self._num_pausing > 0

    async def _pause(self, method: str, *arguments: Any, **named: Any) -> None:
        self._num_pausing += 1
        try:
            await self.pass_on(method, *arguments, **named)
            self._is_paused = True
        finally:
            self._num_pausing -= 1

    # -- weights ------------------------------------------------------------------------------

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        """Sends a part of a weight update to the engines that need it.

        All engines read an update's files. Only the engine that will pack the weights copies tensors from shared
        memory.
        """
        are_files = self._transfer is not None and self._transfer.backend == "safetensors"
        try:
            if are_files:
                await self.pass_on("update_weights", request)
            else:
                await self._engines()[0].update_weights(request)
        except FailedPrecondition:
            await self._forget_update()
            raise

    async def finish_weight_update(self) -> None:
        """Ends a weight update: one engine packs and serves the updated weights, then the other engines map them.

        An engine that fails to map the weights is ended, and restarts with them. Requests must be paused.
        """
        if self.weights is None or self._transfer is None:
            await self._engines()[
                0
            ].finish_weight_update()  # raises the right error for several engines
            self.has_lasting_weights = False
            return
        await unbroken(self._replace_weights(self.weights))

    async def _replace_weights(self, weights: WeightFiles) -> None:
        async with self._resuming:
            if not self._is_paused or self._num_pausing:
                raise FailedPrecondition(
                    "several engines change their weights together: call pause_generation first, with mode wait, "
                    "abort or keep, and finish_weight_update after it has returned"
                )
            packed, first = weights.next(), self._engines()[0]
            try:
                await first.finish_packed_update(packed, is_elsewhere=False)
            except WeftError:
                await self._forget_update()
                raise
            weights.use(packed)
            await asyncio.gather(
                *(self._adopt(engine, packed) for engine in self._engines() if engine is not first)
            )

    async def _forget_update(self) -> None:
        """Drops a partial weight update in all engines, after one engine has refused a part of the update."""
        await self.pass_on("init_weight_transfer_engine", WeightTransferInitRequest())

    async def _adopt(self, engine: FrontClient, packed: PackedWeights) -> None:
        try:
            await engine.finish_packed_update(packed, is_elsewhere=True)
        except WeftError as error:
            log.error("an engine did not take the new weights and is restarted: %s", error)
            engine.hand_over()
            engine.shutdown()

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        data_parallel_rank: int | None = None,
    ) -> None:
        """Notifies the prefill engine, through any live engine, that a request was refused."""
        del data_parallel_rank
        engine = self._engines()[0]
        await engine.notify_kv_transfer_request_rejected(request_id, kv_transfer_params)

    # -- adapters -----------------------------------------------------------------------------

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        """Adapters that any engine has loaded: an engine that lacks an adapter loads it when a request names it."""
        every = [engine.lora_requests for engine in self._engines()]
        return {name: request for one in every for name, request in one.items()}

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter in all engines. If one engine refuses a new adapter, no engine keeps it."""
        name, lora_id = lora_request.lora_name, lora_request.lora_int_id
        is_new = name not in self.lora_requests
        try:
            await self.pass_on("add_lora", lora_request)
        except WeftError:
            for engine in self._engines():
                if is_new and name in engine.lora_requests:
                    await engine.remove_lora(lora_id)
            raise
        self._adapters[lora_id] = msgspec.structs.replace(lora_request, load_inplace=False)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        self._adapters.pop(lora_id, None)
        self._pinned.discard(lora_id)
        is_known: bool = await self.pass_on("remove_lora", lora_id)
        return is_known

    async def pin_lora(self, lora_id: int) -> bool:
        is_known: bool = await self.pass_on("pin_lora", lora_id)
        if is_known:
            self._pinned.add(lora_id)
        return is_known
