"""`RpcPrefiller`: prompts are computed by other gRPC servers."""

import json
from typing import Any

import grpc
import msgspec

from weft.core.headers import PREFILLER
from weft.core.observe.tracing import carried
from weft.core.prefilling import MAX_ANSWER_BYTES, Prefiller
from weft.core.values.kv_transfer import Prefill
from weft.core.values.types import Request
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.auth import CallMetadata
from weft.rpc.methods import SERVICE
from weft.wire.ports import client_args

_LEND = json.dumps({"do_remote_decode": True})
_MAX_PROMPT_BYTES = 256 << 20
_ARGS = {
    **dict(client_args(max_message_bytes=_MAX_PROMPT_BYTES)),
    "grpc.max_receive_message_length": MAX_ANSWER_BYTES,
}


def prefill_of(metadata: CallMetadata) -> Prefill | None:
    """Returns the prefill server that a router named in the call's metadata; None if the metadata name no server."""
    given = {name: str(value) for name, value in metadata}
    address = given.get(PREFILLER)
    if address is None:
        return None
    return Prefill(address=address, authorization=given.get("authorization"))


class RpcPrefiller(Prefiller):
    """Prefills on another server, over gRPC. The transfer parameters arrive only when the whole prompt is computed,
    because the protocol has no stream message for them.
    """

    way_failures = (grpc.aio.AioRpcError,)

    async def _lend(
        self, request: Request, address: str, authorization: str | None
    ) -> dict[str, Any] | None:
        message = pb.GenerateRequest(
            request_id=request.request_id,
            sampling_params=pb.SamplingParams(max_tokens=1, temperature=0.0),
            kv_transfer_params_json=_LEND,
        )
        message.tokenized.input_ids.extend(request.prompt_token_ids)
        metadata = list(carried(request.trace_headers or {}).items())
        if authorization is not None:
            metadata.append(("authorization", authorization))
        async with grpc.aio.insecure_channel(address, options=[*_ARGS.items()]) as channel:
            generate = channel.unary_stream(
                f"/{SERVICE}/Generate",
                request_serializer=pb.GenerateRequest.SerializeToString,
                response_deserializer=pb.GenerateResponse.FromString,
            )
            found = ""
            async for reply in generate(message, metadata=metadata, timeout=self._timeout_s):
                found = reply.complete.kv_transfer_params_json
        return msgspec.json.decode(found, type=dict[str, Any]) if found else None
