"""`Recall`: finds the conversation, or the earlier response, that a request of the Responses API continues."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.media import takes_any
from weft.schema.responses import ResponsesBody
from weft.web.chat.prompt import check_messages
from weft.web.inference.call import ModelCall
from weft.web.items.conversation_store import Conversations
from weft.web.items.items import referred_ids
from weft.web.items.recalled import Recalled
from weft.web.responses.request import conversation_id
from weft.web.responses.runs import Runs
from weft.web.responses.store import StoredResponse
from weft.web.responses.unsupported import check_body, check_store

# Responses that are not stored and may be continued, by id.
UnstoredById: TypeAlias = Mapping[str | None, StoredResponse]
NO_UNSTORED: Final[UnstoredById] = MappingProxyType({})


class PreviousResponseNotFound(BadRequest):
    """No response with this id is stored; clients then send the whole conversation."""

    api_code = "previous_response_not_found"


class Recall:
    """Finds the stored objects of requests."""

    def __init__(self, runs: Runs, conversations: Conversations) -> None:
        self._runs = runs
        self._conversations = conversations

    def stores(self, call: ModelCall) -> bool:
        """False if a later request may reach another API server, which would not find the response."""
        return call.served.stores_responses or self._runs.store.is_durable

    async def of(
        self, call: ModelCall, body: ResponsesBody, unstored: UnstoredById = NO_UNSTORED
    ) -> Recalled:
        """Returns the stored objects that a request continues."""
        check_body(body)
        if not (self.stores(call) or body.previous_response_id in unstored):
            check_store(body)
        tenant = call.tenant_name
        items = await self._runs.store.find_items(tenant, referred_ids(body.input))
        if body.conversation is not None:
            recalled = await self._conversations.recall(
                tenant,
                conversation_id(body),
                takes_media=takes_any(call.served.client.model_config.media),
            )
        else:
            recalled = await self._before(tenant, body, unstored)
        return msgspec.structs.replace(recalled, items=items | recalled.items)

    async def _before(self, tenant: str, body: ResponsesBody, unstored: UnstoredById) -> Recalled:
        """Returns the conversation before this request's input, and the MCP servers whose tools were listed in it."""
        if body.previous_input_messages:
            try:
                check_messages(body.previous_input_messages)
            except BadRequest as error:
                raise BadRequest("previous_input_messages", f"previous_input_{error}") from error
            return Recalled(before=body.previous_input_messages)
        if body.previous_response_id is None:
            return Recalled()
        stored = unstored.get(body.previous_response_id) or await self._runs.store.get(
            tenant, body.previous_response_id
        )
        if isinstance(stored, StoredResponse):
            return Recalled(before=stored.conversation(), known_labels=stored.known_labels)
        shown = f"Previous response with id {body.previous_response_id[:64]!a}"
        if stored is not None or self._runs.get(tenant, body.previous_response_id) is not None:
            raise BadRequest("previous_response_id", f"{shown} has not ended yet.")
        raise PreviousResponseNotFound("previous_response_id", f"{shown} not found.")
