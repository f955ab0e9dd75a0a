"""Which model a request means; every API asks here."""

from weft.core.errors import NotFound
from weft.web.served import Served

_MAX_SHOWN = 64


def resolve_model(served: Served, name: str | None) -> str:
    """The name that the answer bears. None is the model that is served first; `NotFound` for a stranger's."""
    names = served.client.model_config.served_model_names
    if name is None:
        return names[0]
    if name not in names:
        shown = name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "..."
        raise NotFound(f"The model {shown!a} does not exist; this server has {', '.join(names)}")
    return name
