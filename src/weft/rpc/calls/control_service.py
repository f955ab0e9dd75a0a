"""The calls of `vllm.Control`: facts, requests, adapters, pause and sleep, weights."""

import secrets
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from weft.core.client import EngineClient
from weft.core.errors import (
    AlreadyExists,
    BadRequest,
    FailedPrecondition,
    Forbidden,
    NotFound,
    Unsupported,
)
from weft.core.values.controls import PauseMode
from weft.core.values.types import LoRARequest
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.pb import vllm_control_pb2 as pb
from weft.rpc.auth import OPERATOR_CALLS, Keys
from weft.rpc.boundary import Context, UnaryHandler
from weft.rpc.convert.control_info import (
    to_adapter,
    to_adapters,
    to_control_model_info,
    to_control_server_info,
    to_kv_event_sources,
)
from weft.rpc.convert.json_objects import from_json
from weft.rpc.options import RpcOptions

_MAX_ID = 2**31 - 1
_MODES: Mapping[int, PauseMode] = MappingProxyType(
    {
        pb.PAUSE_MODE_UNSPECIFIED: PauseMode.ABORT,
        pb.PAUSE_MODE_ABORT: PauseMode.ABORT,
        pb.PAUSE_MODE_WAIT: PauseMode.WAIT,
        pb.PAUSE_MODE_KEEP: PauseMode.KEEP,
    }
)
_NO_VERSIONS = "the weights of this engine have no versions"


class ControlService:
    """Serves `vllm.Control`. `abort` is the call of the same name of `VllmEngine`, which has the same message."""

    def __init__(
        self,
        client: EngineClient,
        keys: Keys,
        options: RpcOptions,
        *,
        has_tokenizer: bool,
        abort: UnaryHandler,
    ) -> None:
        self._client = client
        self._keys = keys
        self._options = options
        self._has_tokenizer = has_tokenizer
        self._abort_ids = abort
        self._instance_id = uuid.uuid4().hex

    def unary_calls(self) -> Mapping[str, UnaryHandler]:
        """All calls, by name."""
        calls: dict[str, UnaryHandler] = {
            "GetServerInfo": self._get_server_info,
            "GetModelInfo": self._get_model_info,
            "GetKvEventSources": self._get_kv_event_sources,
            "Shutdown": self._shutdown,
            "Abort": self._abort,
            "LoadLora": self._load_lora,
            "UnloadLora": self._unload_lora,
            "ListLoras": self._list_loras,
            "PauseGeneration": self._pause,
            "ResumeGeneration": self._resume,
            "IsPaused": self._is_paused,
            "Sleep": self._sleep,
            "WakeUp": self._wake_up,
            "IsSleeping": self._is_sleeping,
            "InitWeightTransferEngine": self._init_weight_transfer,
            "StartWeightUpdate": self._start_weight_update,
            "StartDraftWeightUpdate": self._start_draft_update,
            "UpdateWeights": self._update_weights,
            "FinishWeightUpdate": self._finish_weight_update,
            "UpdateWeightVersion": self._update_weight_version,
            "GetWeightVersion": self._get_weight_version,
        }
        return {
            name: self._for_operators(call) if name in OPERATOR_CALLS else call
            for name, call in calls.items()
        }

    def _for_operators(self, call: UnaryHandler) -> UnaryHandler:
        """Refuses a call on a server without control keys; the gate checks the key itself."""

        async def checked(request: Any, context: Context) -> Message:
            if not self._keys.has_control:
                raise Forbidden("control is off: start the server with --control-api-key")
            return await call(request, context)

        return checked

    # -- facts --------------------------------------------------------------------------------

    async def _get_server_info(
        self, _request: pb.GetServerInfoRequest, _context: Context
    ) -> pb.ServerInfo:
        return to_control_server_info(self._client.info, self._instance_id)

    async def _get_model_info(
        self, _request: pb.GetModelInfoRequest, _context: Context
    ) -> pb.ModelInfo:
        return to_control_model_info(
            self._client.info,
            has_tokenizer=self._has_tokenizer,
            reasoning_parser=self._options.reasoning_parser,
        )

    async def _get_kv_event_sources(
        self, _request: pb.GetKvEventSourcesRequest, _context: Context
    ) -> pb.GetKvEventSourcesResponse:
        sources = to_kv_event_sources(self._client.info.config)
        return pb.GetKvEventSourcesResponse(sources=sources)

    # -- requests and adapters ----------------------------------------------------------------

    async def _shutdown(self, _request: pb.ShutdownRequest, _context: Context) -> Message:
        raise FailedPrecondition(
            "the server ends by a signal of the process that started it: SIGTERM lets open requests finish"
        )

    async def _abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        await self._abort_ids(request, context)
        return pb.AbortResponse()

    async def _load_lora(
        self, request: pb.LoadLoraRequest, _context: Context
    ) -> pb.LoadLoraResponse:
        self._check_loras_change()
        if request.lora_name in self._client.lora_requests:
            raise AlreadyExists(
                f"The lora adapter {request.lora_name[:64]!a} has already been loaded."
            )
        if not Path(request.source_path).is_absolute():
            raise BadRequest("source_path", "source_path must begin with /")
        lora = LoRARequest(
            lora_name=request.lora_name,
            # A random id, so that no table of used ids is needed.
            lora_int_id=1 + secrets.randbelow(_MAX_ID),
            lora_path=request.source_path,
        )
        try:
            await self._client.add_lora(lora)
        except BadRequest as error:
            raise error.renamed({"lora_path": "source_path"}) from None
        return pb.LoadLoraResponse(adapter=to_adapter(lora))

    async def _unload_lora(
        self, request: pb.UnloadLoraRequest, _context: Context
    ) -> pb.UnloadLoraResponse:
        self._check_loras_change()
        name = request.lora_name
        known = self._client.lora_requests.get(name)
        if known is None or not await self._client.remove_lora(known.lora_int_id):
            raise NotFound(f"The lora adapter {name[:64]!a} cannot be found.", "lora_name")
        return pb.UnloadLoraResponse(adapter=to_adapter(known))

    async def _list_loras(
        self, _request: pb.ListLorasRequest, context: Context
    ) -> pb.ListLorasResponse:
        names = self._keys.adapters_of(self._client, context.invocation_metadata() or ())
        return pb.ListLorasResponse(adapters=to_adapters(names))

    def _check_loras_change(self) -> None:
        if not self._options.allow_runtime_lora_updating:
            raise FailedPrecondition(
                "adapters are fixed: start the server with --enable-lora --allow-runtime-lora-updating"
            )

    # -- pause and sleep ----------------------------------------------------------------------

    async def _pause(
        self, request: pb.PauseGenerationRequest, _context: Context
    ) -> pb.PauseGenerationResponse:
        clears = not request.HasField("clear_cache") or request.clear_cache
        await self._client.pause_generation(mode=_to_mode(request.mode), clear_cache=clears)
        return pb.PauseGenerationResponse()

    async def _resume(
        self, _request: pb.ResumeGenerationRequest, _context: Context
    ) -> pb.ResumeGenerationResponse:
        await self._client.resume_generation()
        return pb.ResumeGenerationResponse()

    async def _is_paused(
        self, _request: pb.IsPausedRequest, _context: Context
    ) -> pb.IsPausedResponse:
        return pb.IsPausedResponse(paused=await self._client.is_paused())

    async def _sleep(self, request: pb.SleepRequest, _context: Context) -> pb.SleepResponse:
        level = request.level if request.HasField("level") else 1
        await self._client.sleep(level, _to_mode(request.mode))
        return pb.SleepResponse()

    async def _wake_up(self, request: pb.WakeUpRequest, _context: Context) -> pb.WakeUpResponse:
        await self._client.wake_up(list(request.tags) or None)
        return pb.WakeUpResponse()

    async def _is_sleeping(
        self, _request: pb.IsSleepingRequest, _context: Context
    ) -> pb.IsSleepingResponse:
        return pb.IsSleepingResponse(sleeping=await self._client.is_sleeping())

    # -- weights ------------------------------------------------------------------------------

    async def _init_weight_transfer(
        self, request: pb.InitWeightTransferEngineRequest, _context: Context
    ) -> pb.InitWeightTransferEngineResponse:
        info = from_json("init_info_json", request.init_info_json or b"{}")
        await self._client.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))
        return pb.InitWeightTransferEngineResponse()

    async def _start_weight_update(
        self, _request: pb.StartWeightUpdateRequest, _context: Context
    ) -> pb.StartWeightUpdateResponse:
        await self._client.start_weight_update()
        return pb.StartWeightUpdateResponse()

    async def _start_draft_update(
        self, _request: pb.StartDraftWeightUpdateRequest, _context: Context
    ) -> Message:
        raise Unsupported("weights of a draft model are not updated apart from those of the model")

    async def _update_weights(
        self, request: pb.UpdateWeightsRequest, _context: Context
    ) -> pb.UpdateWeightsResponse:
        info = from_json("update_info_json", request.update_info_json)
        await self._client.update_weights(WeightTransferUpdateRequest(update_info=info))
        return pb.UpdateWeightsResponse()

    async def _finish_weight_update(
        self, request: pb.FinishWeightUpdateRequest, _context: Context
    ) -> pb.FinishWeightUpdateResponse:
        if request.HasField("weight_version"):
            raise BadRequest("weight_version", f"weight_version must be absent: {_NO_VERSIONS}")
        await self._client.finish_weight_update()
        return pb.FinishWeightUpdateResponse()

    async def _update_weight_version(
        self, _request: pb.UpdateWeightVersionRequest, _context: Context
    ) -> Message:
        raise Unsupported(_NO_VERSIONS)

    async def _get_weight_version(
        self, _request: pb.GetWeightVersionRequest, _context: Context
    ) -> Message:
        raise Unsupported(_NO_VERSIONS)


def _to_mode(number: int) -> PauseMode:
    mode = _MODES.get(number)
    if mode is None:
        raise BadRequest("mode", f"mode must be one of {', '.join(PauseMode)}, got {number}")
    return mode
