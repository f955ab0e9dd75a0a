"""What a client asks for, to the wire: everything the wire cannot carry is refused by name."""

from weft.core.declare import Carried
from weft.core.errors import BadRequest
from weft.core.params import PARAMETERS
from weft.core.types import OutputKind, Request, SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.sampling import to_message

_INT32 = range(-(2**31), 2**31)
_NOT_CARRIED = tuple(p.name for p in PARAMETERS.values() if p.param.wire is Carried.NOT)


def check_carried(params: SamplingParams) -> None:
    """Refuse what a caller asks for and this wire has no field for. Zeros that mean "unset" are out of range."""
    for name in _NOT_CARRIED:
        value = getattr(params, name)
        if value or type(value) is int:  # a budget of 0 is asked for too
            raise not_on_this_wire(name)
    if params.seed is not None and params.seed not in _INT32:
        raise BadRequest(
            "seed", f"seed must fit in 32 bits over this connection, got {params.seed}"
        )
    constraint = params.structured_outputs
    if constraint is not None and constraint.whitespace_pattern is not None:
        raise not_on_this_wire("whitespace_pattern")


def to_generate_request(request: Request) -> pb.GenerateRequest:
    """Translate a checked request."""
    message = pb.GenerateRequest(
        request_id=request.request_id,
        sampling_params=to_message(request.params),
        stream=request.params.output_kind is not OutputKind.FINAL_ONLY,
        data_parallel_rank=request.data_parallel_rank,
    )
    message.tokenized.input_ids.extend(request.prompt_token_ids)
    message.tokenized.original_text = request.prompt or ""
    return message


def not_on_this_wire(name: str) -> BadRequest:
    """The error for something that only an engine in this process can be given."""
    return BadRequest(name, f"{name} cannot be sent over gRPC")
