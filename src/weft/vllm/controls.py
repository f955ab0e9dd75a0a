"""`VllmControls`: passes an operator's calls to vLLM's engine, and converts its refusals to Weft's errors."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, get_origin

from weft.core.checks.lora import validate_lora
from weft.core.checks.scalars import check_integer, check_number
from weft.core.config.elastic import MAX_DRAIN_S, refuse_scaling
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest, NotFound, Unavailable
from weft.core.operator_calls import (
    CALLS,
    PROFILER_FLAG,
    TRANSFER_FLAG,
    OperatorCalls,
    check_flag,
    passed_on,
)
from weft.core.values.controls import PauseMode, check_sleep_level, read_pause_mode, read_sleep_tags
from weft.core.values.types import LoRARequest
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.vllm.convert.errors import translated
from weft.vllm.convert.settings import MAX_ELASTIC_RANKS
from weft.vllm.engine import scale, to_lora, to_weight_transfer

MAX_ADAPTERS = 1024  # whether loaded or not


class VllmControls(OperatorCalls):
    """Operator calls of the engine `llm`. `use_ranks` is called with a new number of ranks; `check_alive` raises an
    error if the engine is not running.
    """

    def __init__(
        self,
        llm: Any,
        config: EngineConfig,
        check_alive: Callable[[], None],
        use_ranks: Callable[[int], None],
    ) -> None:
        self._llm = llm
        self._check_alive = check_alive
        self._use_ranks = use_ranks
        self._model_config = config.model_config
        self._has_loras = config.lora_config is not None
        self.loras: Mapping[str, LoRARequest] = {}
        there = llm.vllm_config
        flags = {
            PROFILER_FLAG: there.profiler_config.profiler,
            TRANSFER_FLAG: there.weight_transfer_config,
        }
        self._flags = [flag for flag, given in flags.items() if given is not None]
        self._is_elastic = bool(there.parallel_config.enable_elastic_ep)
        self._is_scaling = False

    async def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
        check_flag(name, self._flags)
        return await super().answer(name, *arguments, **named)

    async def pass_on(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Passes the arguments to vLLM unchanged."""
        answer = CALLS[method].answer
        with self._calling():
            found = await getattr(self._llm, method)(*arguments, **named)
            return None if answer is None else (get_origin(answer) or answer)(found)

    finish_weight_update = passed_on("finish_weight_update")
    is_paused = passed_on("is_paused")
    list_loras = passed_on("list_loras")
    pin_lora = passed_on("pin_lora")
    reset_encoder_cache = passed_on("reset_encoder_cache")
    reset_mm_cache = passed_on("reset_mm_cache")
    reset_prefix_cache = passed_on("reset_prefix_cache")
    resume_generation = passed_on("resume_generation")
    stop_profile = passed_on("stop_profile")

    # -- scheduling and memory ----------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        chosen = read_pause_mode(mode, is_wait=wait_for_inflight_requests)
        with self._calling():
            await self._llm.pause_generation(mode=chosen.value, clear_cache=clear_cache)

    async def is_sleeping(self) -> bool:
        with self._calling():
            return bool(await self._llm.is_sleeping()) or await self.is_paused()

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        check_sleep_level(level)
        chosen = read_pause_mode(mode)
        with self._calling():
            await self._llm.sleep(level, chosen.value)

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        named = None if tags is None else read_sleep_tags(tags)
        with self._calling():
            return bool(await self._llm.wake_up(named))

    # -- profiles, calls by name, number of ranks ---------------------------------------------

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        with self._calling():
            await self._llm.start_profile(
                profile_prefix, delay_iterations=delay_iterations, max_iterations=max_iterations
            )

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a public method of vLLM's workers, with its arguments."""
        if not method.isidentifier() or method.startswith("_"):
            raise BadRequest(
                "method", f"method must be a method of vLLM's worker, got {method[:80]!a}"
            )
        with self._calling("method"):
            given = tuple(args), dict(kwargs or {})
            return list(await self._llm.collective_rpc(method, timeout, *given))

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        """Changes the number of ranks. vLLM decides whether the requests of leaving ranks are finished first."""
        if not self._is_elastic:
            refuse_scaling()
        check_integer("new_data_parallel_size", new_data_parallel_size, 1, MAX_ELASTIC_RANKS)
        check_number("drain_timeout", drain_timeout, 0, MAX_DRAIN_S, above=True)
        if self._is_scaling:
            raise Unavailable("the number of engines is being changed already; try again later")
        self._is_scaling = True
        try:
            with self._calling("new_data_parallel_size"):
                await scale(self._llm, new_data_parallel_size, math.ceil(drain_timeout))
        finally:
            self._is_scaling = False
        self._use_ranks(new_data_parallel_size)

    async def is_scaling_elastic_ep(self) -> bool:
        return self._is_scaling

    # -- transfers and weights ----------------------------------------------------------------

    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        data_parallel_rank: int | None = None,
    ) -> None:
        with self._calling():
            await self._llm.notify_kv_transfer_request_rejected(
                request_id, kv_transfer_params, data_parallel_rank=data_parallel_rank
            )

    async def init_weight_transfer_engine(self, request: WeightTransferInitRequest) -> None:
        with self._calling():
            await self._llm.init_weight_transfer_engine(to_weight_transfer(request))

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        if not is_checkpoint_format:
            raise BadRequest(
                "is_checkpoint_format", "is_checkpoint_format must be true with this engine"
            )
        with self._calling():
            await self._llm.start_weight_update()

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        with self._calling():
            await self._llm.update_weights(to_weight_transfer(request))

    # -- adapters -----------------------------------------------------------------------------

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        if not self._has_loras:
            raise BadRequest("lora_request", "lora_request needs an engine with --enable-lora")
        validate_lora(lora_request, self._model_config)
        name = lora_request.lora_name
        for other in self.loras.values():
            if other.lora_int_id == lora_request.lora_int_id and other.lora_name != name:
                raise BadRequest(
                    "lora_int_id",
                    f"lora_int_id {other.lora_int_id} is already used by the adapter {other.lora_name!a}",
                )
        if name not in self.loras and len(self.loras) >= MAX_ADAPTERS:
            raise BadRequest("lora_name", f"at most {MAX_ADAPTERS} adapters may be named")
        with self._calling("lora_path"):
            await self._llm.add_lora(to_lora(lora_request))
        self.loras = {**self.loras, name: lora_request}
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        with self._calling():
            is_done = bool(await self._llm.remove_lora(lora_id))
        others = {n: r for n, r in self.loras.items() if r.lora_int_id != lora_id}
        was_known, self.loras = len(others) < len(self.loras), others
        return is_done or was_known

    def check_lora(self, request: LoRARequest | None) -> None:
        """Raises an error for an adapter that no operator has loaded: a request must not name a directory."""
        if request is not None and self.loras.get(request.lora_name) != request:
            raise NotFound(f"lora_name {request.lora_name!a} is not loaded", "lora_name")

    def _calling(self, parameter: str | None = None) -> AbstractContextManager[None]:
        self._check_alive()
        return translated(parameter)
