"""`VllmControls`: the calls by which an operator pauses, changes and looks into vLLM's engine."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from weft.core.checks.lora import validate_lora
from weft.core.checks.validate import check_integer, check_number
from weft.core.client import EngineClient
from weft.core.config.elastic import MAX_DRAIN_S, refuse_scaling
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest, NotFound, Unavailable, Unsupported
from weft.core.values.controls import check_sleep_level, read_pause_mode, read_sleep_tags
from weft.core.values.types import LoRARequest, PauseMode
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.vllm.convert.errors import translated
from weft.vllm.convert.settings import MAX_ELASTIC_RANKS
from weft.vllm.engine import scale, to_lora, to_weight_transfer

MAX_ADAPTERS = 1024  # whether loaded or not


class VllmControls(EngineClient):
    """The calls of `VllmClient` that are passed to vLLM, with its refusals converted to errors."""

    def __init__(self, llm: Any, config: EngineConfig) -> None:
        self._llm = llm
        self._loras: dict[str, LoRARequest] = {}
        self._has_loras = config.lora_config is not None
        there = llm.vllm_config
        self._has_reasoning_parser = bool(there.structured_outputs_config.reasoning_parser)
        self._has_profiler = there.profiler_config.profiler is not None
        self._has_weight_transfer = there.weight_transfer_config is not None
        self._is_elastic = bool(there.parallel_config.enable_elastic_ep)
        self._is_scaling = False

    @abstractmethod
    def _check_alive(self) -> None:
        """Raises an error if the engine is not running."""

    @abstractmethod
    def _use_ranks(self, size: int) -> None:
        """Sets the number of ranks."""

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

    async def resume_generation(self) -> None:
        with self._calling():
            await self._llm.resume_generation()

    async def is_paused(self) -> bool:
        with self._calling():
            return bool(await self._llm.is_paused())

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

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        with self._calling():
            return bool(await self._llm.reset_prefix_cache(reset_running_requests, reset_connector))

    async def reset_mm_cache(self) -> None:
        with self._calling():
            await self._llm.reset_mm_cache()

    async def reset_encoder_cache(self) -> None:
        with self._calling():
            await self._llm.reset_encoder_cache()

    # -- looking inside -----------------------------------------------------------------------

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        self._require("start_profile", self._has_profiler, "--profiler-config")
        with self._calling():
            await self._llm.start_profile(
                profile_prefix, delay_iterations=delay_iterations, max_iterations=max_iterations
            )

    async def stop_profile(self) -> None:
        self._require("stop_profile", self._has_profiler, "--profiler-config")
        with self._calling():
            await self._llm.stop_profile()

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a public method of vLLM's workers, with its arguments."""
        if not method.isidentifier() or method.startswith("_"):
            raise BadRequest("method", f"method must be one of vLLM's worker, got {method[:80]!a}")
        with self._calling("method"):
            given = tuple(args), dict(kwargs or {})
            return list(await self._llm.collective_rpc(method, timeout, *given))

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        """Changes the number of ranks. vLLM decides whether requests of leaving ranks are finished first."""
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
        self._require_transfer("init_weight_transfer_engine")
        with self._calling():
            await self._llm.init_weight_transfer_engine(to_weight_transfer(request))

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        self._require_transfer("start_weight_update")
        if not is_checkpoint_format:
            raise BadRequest(
                "is_checkpoint_format", "is_checkpoint_format must be true with this engine"
            )
        with self._calling():
            await self._llm.start_weight_update()

    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        self._require_transfer("update_weights")
        with self._calling():
            await self._llm.update_weights(to_weight_transfer(request))

    async def finish_weight_update(self) -> None:
        self._require_transfer("finish_weight_update")
        with self._calling():
            await self._llm.finish_weight_update()

    # -- adapters -----------------------------------------------------------------------------

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        return self._loras

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        if not self._has_loras:
            raise BadRequest("lora_request", "lora_request needs an engine with --enable-lora")
        validate_lora(lora_request, self.model_config)
        name = lora_request.lora_name
        for other in self._loras.values():
            if other.lora_int_id == lora_request.lora_int_id and other.lora_name != name:
                raise BadRequest(
                    "lora_int_id",
                    f"lora_int_id {other.lora_int_id} is that of the adapter {other.lora_name!a}",
                )
        if name not in self._loras and len(self._loras) >= MAX_ADAPTERS:
            raise BadRequest("lora_name", f"at most {MAX_ADAPTERS} adapters may be named")
        with self._calling("lora_path"):
            await self._llm.add_lora(to_lora(lora_request))
        self._loras[name] = lora_request
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        with self._calling():
            is_done = bool(await self._llm.remove_lora(lora_id))
        others = {n: r for n, r in self._loras.items() if r.lora_int_id != lora_id}
        was_known, self._loras = len(others) < len(self._loras), others
        return is_done or was_known

    async def list_loras(self) -> set[int]:
        with self._calling():
            return set(await self._llm.list_loras())

    async def pin_lora(self, lora_id: int) -> bool:
        with self._calling():
            return bool(await self._llm.pin_lora(lora_id))

    def _check_lora(self, request: LoRARequest | None) -> None:
        """Accepts only adapters that an operator has loaded: a request must not name a directory."""
        if request is not None and self._loras.get(request.lora_name) != request:
            raise NotFound(f"lora_name {request.lora_name!a} is not loaded", "lora_name")

    # -- shared -------------------------------------------------------------------------------

    def _calling(self, parameter: str | None = None) -> AbstractContextManager[None]:
        self._check_alive()
        return translated(parameter)

    def _require_transfer(self, method: str) -> None:
        self._require(method, self._has_weight_transfer, "--weight-transfer-config")

    def _require(self, method: str, has: bool, flag: str) -> None:
        if not has:
            raise Unsupported(f"{method} is not supported: the engine was started without {flag}")
