"""`OperatorCalls`: the calls by which an operator pauses, changes and inspects an engine, and `CALLS`, their table.

The decorator of each method declares its row in the table: types, the server flag that enables the call, and the
function that merges the answers of several engines. A client passes every call that it does not define itself to its
`controls`. These belong to one engine, to a group of engines, to vLLM's engine, or to the process that owns the
engines.
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from weft.core.errors import Unsupported
from weft.core.values.controls import Drained, PauseMode
from weft.core.values.engine_snapshots import RequestStates
from weft.core.values.types import LoRARequest
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

PROFILER_FLAG = "--profiler-config"
TRANSFER_FLAG = "--weight-transfer-config"


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One row of the table of operator calls. `merge` combines the answers of several engines into one answer.

    `answer` is the type of the answer. `argument` is the type of the first argument, if that is a structure. `flag` is
    the server flag that enables the call; None if the call needs no flag.
    """

    answer: Any
    argument: type[msgspec.Struct] | None
    merge: Callable[[list[Any]], Any]
    flag: str | None


CALLS: dict[str, OperatorCall] = {}


def check_flag(name: str, given: Collection[str]) -> None:
    """Raises `Unsupported` for a call whose flag is not among the flags that the engine was started with."""
    flag = CALLS[name].flag
    if flag is not None and flag not in given:
        raise Unsupported(f"{name} is not supported: the engine was started without {flag}")


def unsupported(method: str) -> NoReturn:
    """Raises `Unsupported` for a call that an engine does not offer."""
    raise Unsupported(f"{method} is not supported by this engine")


def passed_on(name: str) -> Any:
    """Returns a method that gives its name and its arguments to the `pass_on` of its object."""

    async def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return await self.pass_on(name, *arguments, **named)

    call.__name__ = name
    return call


def joined(answers: list[list[Any]]) -> list[Any]:
    """Returns one list with the items of all lists, in order."""
    return list(chain.from_iterable(answers))


def united(answers: list[set[Any]]) -> set[Any]:
    """Returns the union of the sets."""
    return set().union(*answers)


def operator_call(
    *, merge: Callable[[list[Any]], Any] = lambda answers: None, flag: str | None = None
) -> Callable[[F], F]:
    """Adds a method to the table of operator calls. The method's body answers for a client without `controls`."""

    def add(method: F) -> F:
        name, signature = method.__name__, inspect.signature(method)
        first = [parameter.annotation for parameter in signature.parameters.values()][1:2]
        argument = next((one for one in first if _is_struct(one)), None)
        CALLS[name] = OperatorCall(signature.return_annotation, argument, merge, flag)

        @wraps(method)
        async def call(self: "OperatorCalls", *arguments: Any, **named: Any) -> Any:
            if self.controls is None:
                return await method(self, *arguments, **named)
            return await self.controls.answer(name, *arguments, **named)

        return call  # type: ignore[return-value]  # has the signature of `method`

    return add


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


class OperatorCalls(Protocol):
    """The calls of an operator to an engine. By default every call raises `Unsupported`."""

    controls: "OperatorCalls | None" = None

    async def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Answers the call `name`, which a client passes on to its `controls`."""
        return await getattr(self, name)(*arguments, **named)

    @operator_call(merge=joined)
    async def get_request_states(self) -> list[RequestStates]:
        """Returns the requests of every data-parallel rank: phase, times and blocks of each answer, but no text."""
        unsupported("get_request_states")

    @operator_call()
    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """Stops scheduling. New requests wait in the queue; `mode` selects the treatment of requests in flight."""
        unsupported("pause_generation")

    @operator_call()
    async def resume_generation(self) -> None:
        """Starts scheduling again; no effect if generation is not paused."""
        unsupported("resume_generation")

    @operator_call(merge=any)
    async def is_paused(self) -> bool:
        """True while generation is paused."""
        unsupported("is_paused")

    @operator_call(merge=all)
    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drops every cached block. Returns False, without dropping any block, if a running request holds blocks.

        With `reset_running_requests` running requests are first preempted, and computed again later.
        """
        unsupported("reset_prefix_cache")

    @operator_call()
    async def reset_mm_cache(self) -> None:
        """Drops cached inputs of media processors. This method exists for callers of vLLM's protocol."""
        unsupported("reset_mm_cache")

    @operator_call()
    async def reset_encoder_cache(self) -> None:
        """Drops cached outputs of media encoders."""
        unsupported("reset_encoder_cache")

    @operator_call(merge=any)
    async def is_sleeping(self) -> bool:
        """True if scheduling is paused, or the memory of weights or KV pool has been released."""
        return await self.is_paused()

    @operator_call()
    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        """Pauses as `mode` says; at level 1 and above also returns the memory of weights and KV pool to the system.

        Level 0 keeps memory and cache. After level 1 `wake_up` restores the same weights, from the files that they were
        loaded from; after level 2, the weights that the model's name then stands for. Requests wait until the engine
        wakes. Raises FailedPrecondition if the weights could not be restored later.
        """
        unsupported("sleep")

    @operator_call(merge=all)
    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Restores the parts in `tags` ("weights", "kv_cache", "scheduling"; None: all). Returns True if the engine is
        awake.

        Scheduling starts again once all memory is restored. Raises FailedPrecondition, and the engine stays asleep, if
        the files have changed since they were loaded or if there is too little memory.
        """
        unsupported("wake_up")

    @operator_call(flag=PROFILER_FLAG)
    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Records a trace of steps into a new file, whose name begins with `profile_prefix`, in the operator's
        directory.

        The first `delay_iterations` steps are left out. The trace ends after `max_iterations` steps; with 0, only at
        `stop_profile`. None stands for the engine's configured value. Raises FailedPrecondition while another trace is
        recorded.
        """
        unsupported("start_profile")

    @operator_call(flag=PROFILER_FLAG)
    async def stop_profile(self) -> None:
        """Ends the trace; no effect without a trace. Raises FailedPrecondition if the trace could not be written."""
        unsupported("stop_profile")

    @operator_call(merge=joined)
    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of each worker by name and returns the results; there is one worker, with a few methods.

        No method takes arguments. Raises BadRequest, or DeadlineExceeded after `timeout` seconds.
        """
        unsupported("collective_rpc")

    @operator_call()
    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        """Changes the number of engines. Requests continue meanwhile; engines that leave hand their requests over to
        those that stay.

        Returns when the change is complete. Raises BadRequest; FailedPrecondition if threads or memory do not suffice
        for more engines; and DeadlineExceeded, with all engines as before, if requests that cannot be handed over take
        longer than `drain_timeout` seconds.
        """
        unsupported("scale_elastic_ep")

    @operator_call(merge=joined)
    async def drain(
        self, data_parallel_ranks: Sequence[int], timeout: float = 300.0
    ) -> list[Drained]:
        """Sends no more requests to the engines of these ranks and hands their running requests over to other engines,
        which continue them at once and without a gap.

        Prompts in pieces cannot move: the call waits up to `timeout` seconds for them. Returns where the requests went,
        an entry for each rank. Raises BadRequest, and FailedPrecondition if no other engine takes requests. The engines
        keep running until `undrain`; an engine that is started again takes requests again.
        """
        unsupported("drain")

    @operator_call()
    async def undrain(self, data_parallel_ranks: Sequence[int]) -> None:
        """Sends requests to drained engines again."""
        unsupported("undrain")

    @operator_call(merge=any)
    async def is_scaling_elastic_ep(self) -> bool:
        """True while the number of engines is being changed."""
        return False

    @operator_call()
    async def notify_kv_transfer_request_rejected(
        self,
        request_id: str,
        kv_transfer_params: dict[str, Any],
        data_parallel_rank: int | None = None,
    ) -> None:
        """Reports that a request with these parameters was refused, so that the prefill engine can free the lent
        blocks.

        A request that was passed to `run` needs no such call, whatever its outcome.
        """
        unsupported("notify_kv_transfer_request_rejected")

    @operator_call(flag=TRANSFER_FLAG)
    async def init_weight_transfer_engine(self, request: WeightTransferInitRequest) -> None:
        """Prepares the engine for weight updates, as `--weight-transfer-config` configures them.

        `init_info` must be empty. Raises Unsupported without that flag, and FailedPrecondition for a model that was not
        loaded from safetensors files.
        """
        unsupported("init_weight_transfer_engine")

    @operator_call(flag=TRANSFER_FLAG)
    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Begins a weight update; raises FailedPrecondition if an update is in progress.

        Tensors of the update have the checkpoint's names and formats.
        """
        unsupported("start_weight_update")

    @operator_call(flag=TRANSFER_FLAG)
    async def update_weights(self, request: WeightTransferUpdateRequest) -> None:
        """Receives some tensors of the update; each has the name, shape and dtype of a tensor in the checkpoint.

        An update may take any number of calls. With shared memory `update_info` has `segment`, `names`, `dtype_names`,
        `shapes` and `offsets` (without `offsets`, tensors follow each other); the caller may reuse the segment after
        the call. With safetensors `update_info` has `path`, a file or directory below the allowed directory, which must
        exist until the update is finished. A refused call ends the update: none of its tensors is served.
        """
        unsupported("update_weights")

    @operator_call(flag=TRANSFER_FLAG)
    async def finish_weight_update(self) -> None:
        """Ends the update: all updated weights are used from the next step on; on an error the former weights stay in
        use.

        Requests that pause mode "keep" has paused continue with the new weights, and their KV is computed again; while
        other requests run, this method raises FailedPrecondition. Cached prefixes of the former weights are not reused,
        and adapters apply to the new weights.
        """
        unsupported("finish_weight_update")

    @operator_call(merge=all)
    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter; returns True once requests may name the adapter.

        An adapter that is already loaded with the same name and path stays as it is; with `load_inplace` it is loaded
        again, and prefixes cached with the former adapter are not reused. When the maximum number of adapters is
        loaded, the least recently used adapter is unloaded, and loaded again when it is requested; while all adapters
        are in use, this method waits. Raises NotFound or BadRequest.
        """
        unsupported("add_lora")

    @operator_call(merge=any)
    async def remove_lora(self, lora_id: int) -> bool:
        """Removes the adapter with this `lora_int_id`; running requests keep the adapter.

        Returns False if no adapter has this id.
        """
        unsupported("remove_lora")

    @operator_call(merge=united)
    async def list_loras(self) -> set[int]:
        """Returns the `lora_int_id` of every loaded adapter."""
        unsupported("list_loras")

    @operator_call(merge=any)
    async def pin_lora(self, lora_id: int) -> bool:
        """Keeps an adapter loaded even when others must be unloaded.

        Returns False if no adapter has that `lora_int_id`.
        """
        unsupported("pin_lora")
