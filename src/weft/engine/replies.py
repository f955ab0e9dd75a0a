"""`attempt`: what a call comes to, when what it may refuse is raised where it is done."""

from collections.abc import Callable

from weft.core.errors import ConfigError, FailedPrecondition, NotFound
from weft.engine.messages import Reply


def attempt(call_id: int, work: Callable[[], object]) -> Reply:
    """Do it, whole or not at all; the reply has what it gave, or says why not."""
    try:
        return Reply(call_id, result=work())
    except (ConfigError, FailedPrecondition, NotFound, OSError) as error:
        return Reply(call_id, is_done=False, refusal=str(error))
    except MemoryError:
        return Reply(call_id, is_done=False, refusal="the memory does not suffice")
