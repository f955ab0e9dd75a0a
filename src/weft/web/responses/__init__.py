"""OpenAI's Responses API: made, stored for a while, read and followed by id."""

from weft.schema.response_events import StreamEvent
from weft.schema.response_object import DeletedResponse, InputItemList, ResponseObject
from weft.schema.responses import ResponsesBody
from weft.web.http.endpoint import Endpoint
from weft.web.inference.call import for_model
from weft.web.inference.fields import beyond_openai
from weft.web.responses.create import Creation
from weft.web.responses.reads import ResponseReads
from weft.web.responses.runs import Runs

_PATH = "/v1/responses"
_ONE = "/v1/responses/{response_id}"


def response_endpoints(runs: Runs) -> tuple[Endpoint, ...]:
    """The endpoints of one server, which share what it makes and stores."""
    creation, reads = Creation(runs), ResponseReads(runs)
    return (
        Endpoint(
            method="POST",
            path=_PATH,
            handler=for_model(creation.create),
            summary="A response to an input: in one piece, streamed, or made in the background",
            body=ResponsesBody,
            example={"input": "Hello!", "max_output_tokens": 32},
            deviations=beyond_openai,
            answer=ResponseObject,
            event=StreamEvent,
        ),
        Endpoint(
            method="GET",
            path=_ONE,
            handler=reads.retrieve,
            summary="A response that is stored or being made; with stream=true its events",
            answer=ResponseObject,
            event=StreamEvent,
        ),
        Endpoint(
            method="DELETE",
            path=_ONE,
            handler=reads.delete,
            summary="Forget a response",
            answer=DeletedResponse,
        ),
        Endpoint(
            method="POST",
            path=f"{_ONE}/cancel",
            handler=reads.cancel,
            summary="End a response that is made in the background",
            answer=ResponseObject,
        ),
        Endpoint(
            method="GET",
            path=f"{_ONE}/input_items",
            handler=reads.input_items,
            summary="The input items of a response, a page at a time",
            answer=InputItemList,
        ),
    )
