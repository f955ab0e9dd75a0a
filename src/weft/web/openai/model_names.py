"""Which model a request means; every API asks here."""

from weft.web.served import Served


def resolve_model(served: Served, name: str | None) -> str:
    """The name that the answer bears. None is the model that is served first; `NotFound` for a stranger's.

    An adapter is a model of its own name.
    """
    if name is None:
        return served.client.model_config.served_model_name
    served.lora_request(name)
    return name
