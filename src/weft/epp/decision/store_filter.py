"""Chooses the endpoints that have a stored object: a response, conversation, file or batch that a request names."""

from collections.abc import Sequence

from weft.core.checks.object_ids import is_durable
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import Drop, Refused

_RETRY_S = 1  # endpoints that have joined report their stores within about this time


def storing(endpoints: Sequence[Endpoint], store: str) -> Sequence[Endpoint]:
    """Returns the endpoints whose store has this name, several if they share a file; all endpoints if no store is
    named. Raises `Refused` if there is none.
    """
    if not store:
        return endpoints
    found = [endpoint for endpoint in endpoints if endpoint.load.store == store]
    if not found:
        raise _absent(store, is_known=all(each.loaded_at is not None for each in endpoints))
    return found


def _absent(store: str, *, is_known: bool) -> Refused:
    if not is_known:
        return Refused(
            503,
            "the server that stores the named object is not known yet; try again",
            Drop.NO_ENDPOINTS,
            retry_after_s=_RETRY_S,
        )
    if is_durable(store):
        return Refused(
            503,
            "the named object is in the file of a server that is not available now",
            Drop.NO_ENDPOINTS,
            retry_after_s=_RETRY_S,
        )
    return Refused(
        404,
        "the named object was in the memory of a server that has ended; --store-file of the servers keeps objects",
    )
