"""A gRPC server of the protocol that is not ours: no metadata of its own, and the quirks of vLLM's servicer."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.calls.tokenizer_archive import TokenizerArchive, to_chunks
from weft.rpc.methods import METHODS, SERVICE

OUTPUT_IDS = (7, 8)


@dataclass
class OtherServer:
    """Steered by its fields. It keeps the requests it gets."""

    reasoning_parser: str = ""
    constrained_decoding_start: str = ""
    sees: bool = False  # pictures
    fails: bool = False  # each request
    dies: bool = False  # with the first request
    tokenizer_files: Mapping[str, bytes] = field(default_factory=dict)
    top_logprobs: pb.TopLogProbs = field(default_factory=pb.TopLogProbs)
    transfer_json: str | None = None  # that comes with an answer
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    is_healthy: bool = True

    async def model_info(self, _request, _context) -> pb.GetModelInfoResponse:
        """A small model."""
        return pb.GetModelInfoResponse(
            model_path="other",
            is_generation=True,
            max_context_length=64,
            vocab_size=512,
            supports_vision=self.sees,
        )

    async def server_info(self, _request, _context) -> pb.GetServerInfoResponse:
        """What of reasoning its constraints wait for."""
        return pb.GetServerInfoResponse(
            server_type="vllm-grpc",
            block_size=16,
            model_dtype="torch.bfloat16",
            engine_reasoning_parser=self.reasoning_parser,
            constrained_decoding_start=self.constrained_decoding_start,
        )

    async def health(self, _request, _context) -> pb.HealthCheckResponse:
        """A flag."""
        return pb.HealthCheckResponse(healthy=self.is_healthy)

    async def generate(self, request: pb.GenerateRequest, context) -> None:
        """Two tokens; a dead engine is an internal error like any other."""
        self.requests.append(request)
        self.is_healthy = not self.dies
        if self.fails or self.dies:
            await context.abort(grpc.StatusCode.INTERNAL, "EngineCore encountered an issue")
        num = len(OUTPUT_IDS)
        complete = pb.GenerateComplete(
            output_ids=OUTPUT_IDS,
            finish_reason="length",
            prompt_tokens=2,
            completion_tokens=num,
            kv_transfer_params_json=self.transfer_json,
        )
        if request.sampling_params.HasField("logprobs"):
            complete.output_logprobs.token_ids.extend(OUTPUT_IDS)
            complete.output_logprobs.token_logprobs.extend([-3.0] * num)
            if request.sampling_params.logprobs:
                complete.output_logprobs.top_logprobs.extend([self.top_logprobs] * num)
        await context.write(pb.GenerateResponse(complete=complete))

    async def tokenizer(self, _request, context) -> None:
        """All of it."""
        for chunk in to_chunks(await TokenizerArchive(self.tokenizer_files).packed()):
            await context.write(chunk)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its address, while it runs."""
        server = grpc.aio.server()
        calls = {
            "GetModelInfo": self.model_info,
            "GetServerInfo": self.server_info,
            "HealthCheck": self.health,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                call, METHODS[name].request_type.FromString, _encode
            )
            for name, call in calls.items()
        }
        handlers["Generate"] = grpc.unary_stream_rpc_method_handler(
            self.generate, pb.GenerateRequest.FromString, _encode
        )
        if self.tokenizer_files:
            handlers["GetTokenizer"] = grpc.unary_stream_rpc_method_handler(
                self.tokenizer, METHODS["GetTokenizer"].request_type.FromString, _encode
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


def _encode(message) -> bytes:
    return message.SerializeToString()
