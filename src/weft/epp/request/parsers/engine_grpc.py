"""Parsers of engines' gRPC protocols: Generate and Embed are scheduled; other calls go to any endpoint."""

from dataclasses import replace
from typing import ClassVar, Final

from weft.core.checks.lora import LORA_METADATA
from weft.epp.request.engine_protocol import EMBED, GENERATE, EngineProtocol
from weft.epp.request.parsers.parser import Call, Dialect, Parser, Reads, malformed, unscheduled
from weft.epp.request.parsers.payload import first_message
from weft.epp.request.parsers.reading_time import MAX_READ_PARTS
from weft.epp.request.sglang import SGLANG
from weft.epp.request.trtllm import TRTLLM
from weft.epp.request.values import InferenceRequest, Refused
from weft.epp.request.vllm import VLLM
from weft.wire.message_bounds import MAX_PARTS

# Parsed, a one-byte token id takes four bytes; a message below this size is always parsed.
_MAX_SURE_BYTES: Final = 2**25


def _suffixes(protocol: EngineProtocol) -> tuple[str, ...]:
    service = protocol.service
    return (f"{service}{GENERATE}", f"{service}{EMBED}", f"{service}/*")


class EngineGrpcParser(Parser):
    """Parses all calls of one engine's service. These protocols name no model, but a LoRA adapter may be named."""

    protocol: ClassVar[EngineProtocol]

    def reads(self, path: str) -> Reads:
        """Returns the parts of the request to read: calls without a prompt, and calls that never end, must not wait for
        a body.
        """
        return Reads.BODY if path.endswith((GENERATE, EMBED)) else Reads.NOTHING

    def parse(self, call: Call) -> InferenceRequest:
        """Parses token ids, which are hashed unchanged, or text, whose tokens are estimated or computed."""
        if self.reads(call.path) is Reads.NOTHING:
            return unscheduled(call, self.type)
        message, protocol = first_message(call), self.protocol
        is_generate = call.path.endswith(GENERATE)
        max_parts = MAX_READ_PARTS if call.is_on_loop else MAX_PARTS
        field = protocol.crowded(message, max_parts, is_generate=is_generate)
        if field is not None:
            raise Refused(
                413, f"{field} has more parts than {max_parts}, which are too many to read"
            )
        parsed = protocol.prompt(message, is_generate=is_generate)
        if parsed is None and len(message) > _MAX_SURE_BYTES:  # memory may not suffice
            raise Refused(413, "invalid gRPC payload: the message is too large to be parsed")
        if parsed is None:
            what = f"a GenerateRequest with {protocol.needs}"
            raise malformed(
                f"invalid gRPC payload: expected {what if is_generate else 'an EmbedRequest with tokenized'}"
            )
        adapter = parsed.adapter
        if self.model_header is not None:
            adapter = call.headers.get(self.model_header, "")
        return replace(
            call.to_request(self.type),
            model=adapter,
            has_adapter=bool(adapter),
            prompts=(parsed.prompt,),
            # Placeholder tokens are equal for all media, so the hashes of the media become part of the cache key.
            cache_salt="".join([parsed.salt, *parsed.media]),
            media=parsed.media,
            is_streaming=parsed.is_streaming,
            max_tokens=parsed.max_tokens,
        )


class VllmGrpcParser(EngineGrpcParser):
    """Parses the calls of vLLM's engine protocol. Metadata may name a LoRA adapter."""

    type = "vllmgrpc-parser"
    protocol = VLLM
    suffixes = _suffixes(VLLM)
    model_header = LORA_METADATA
    dialect = Dialect.VLLM_GRPC


class SglangGrpcParser(EngineGrpcParser):
    """Parses the calls of SGLang's scheduler protocol. `lora_id` may name a LoRA adapter."""

    type = "sglanggrpc-parser"
    protocol = SGLANG
    suffixes = _suffixes(SGLANG)
    dialect = Dialect.SGLANG_GRPC


class TrtllmGrpcParser(EngineGrpcParser):
    """Parses the calls of TensorRT-LLM's protocol. `lora_config.task_id` may name a LoRA adapter."""

    type = "trtllmgrpc-parser"
    protocol = TRTLLM
    suffixes = _suffixes(TRTLLM)
    dialect = Dialect.TRTLLM_GRPC
