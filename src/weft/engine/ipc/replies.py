"""`attempt`: runs the work of a call and converts its exceptions into a refusal."""

from collections.abc import Callable

from weft.core.errors import ConfigError, FailedPrecondition, NotFound
from weft.engine.ipc.messages import Reply


def attempt(call_id: int, work: Callable[[], object]) -> Reply:
    """Runs `work`, which succeeds completely or changes nothing; returns a reply with its result or its error."""
    try:
        return Reply(call_id, result=work())
    except (ConfigError, FailedPrecondition, NotFound, OSError) as error:
        return Reply(call_id, is_done=False, refusal=str(error))
    except MemoryError:
        return Reply(call_id, is_done=False, refusal="not enough memory")
