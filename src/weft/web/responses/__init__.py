"""OpenAI's Responses API: made, stored for a while, read and followed by id."""

from typing import Any

from weft.schema.response_events import StreamEvent
from weft.schema.response_object import (
    CompactedResponse,
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseObject,
)
from weft.schema.responses import InputTokensBody, ResponsesBody
from weft.schema.tokens import TokensBody
from weft.web.http.endpoint import Endpoint, endpoint
from weft.web.inference.call import model_endpoint
from weft.web.items.conversation_store import Conversations
from weft.web.responses.create import Creation
from weft.web.responses.lengths import Lengths
from weft.web.responses.reads import ResponseReads
from weft.web.responses.request import beyond_api
from weft.web.responses.runs import Runs

_PATH = "/v1/responses"
_ONE = "/v1/responses/{response_id}"


def response_endpoints(runs: Runs, conversations: Conversations) -> tuple[Endpoint, ...]:
    """The endpoints of one server, which share its running and stored responses."""
    creation, reads = Creation(runs, conversations), ResponseReads(runs)
    lengths = Lengths(creation)
    example = {"input": "Hello!"}
    stored = {"uses_model": False}
    created: dict[str, Any] = {
        "body": ResponsesBody,
        "example": {"input": "Hello!", "max_output_tokens": 32},
        "deviations": beyond_api,
    }
    return (
        model_endpoint(f"POST {_PATH}", answer=ResponseObject, event=StreamEvent, **created)(
            creation.create
        ),
        model_endpoint(f"POST {_PATH}/render", answer=TokensBody, **created)(creation.render),
        model_endpoint(
            f"POST {_PATH}/input_tokens", body=InputTokensBody, example=example, answer=InputTokens
        )(lengths.input_tokens),
        model_endpoint(
            f"POST {_PATH}/compact", body=InputTokensBody, example=example, answer=CompactedResponse
        )(lengths.compact),
        endpoint(f"GET {_ONE}", answer=ResponseObject, event=StreamEvent, **stored)(reads.retrieve),
        endpoint(f"DELETE {_ONE}", answer=DeletedResponse, **stored)(reads.delete),
        endpoint(f"POST {_ONE}/cancel", answer=ResponseObject, **stored)(reads.cancel),
        endpoint(f"GET {_ONE}/input_items", answer=InputItemList, **stored)(reads.input_items),
    )
