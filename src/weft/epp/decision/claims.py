"""Reads what a request claims by its headers: its priority, its fairness id and its model."""

from collections.abc import Mapping, Sequence

from weft.core.observe.metric_series import MAX_LABEL_CHARS
from weft.epp.decision.plugin import Identity
from weft.epp.pool.objects import Objects
from weft.epp.request.values import InferenceRequest

OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_HEADERS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
REWRITE_HEADERS = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
DEFAULT_FAIRNESS_ID = "default-flow"
# Clients choose fairness ids, and plugins store them, so their length is bounded: one more character than a label may
# have, so that a cut id gets the label "other".
_MAX_FAIRNESS_ID_CHARS = MAX_LABEL_CHARS + 1


def read_priority(headers: Mapping[str, str], objects: Objects) -> int:
    """Returns the priority of the objective that the headers name; 0 if they name none."""
    return objects.priority(_header(headers, OBJECTIVE_HEADERS))


def read_fairness_id(headers: Mapping[str, str], identities: Sequence[Identity]) -> str:
    """Returns the fairness id of a request: that of its headers, or of the first plugin that knows one."""
    named = [_header(headers, FAIRNESS_HEADERS)]
    named += [plugin.fairness_id(headers) for plugin in identities]
    return next(filter(None, named), DEFAULT_FAIRNESS_ID)[:_MAX_FAIRNESS_ID_CHARS]


def read_model(request: InferenceRequest, default: str) -> str:
    """Returns the model of a request that no object rewrites; `default` if the request names none."""
    return _header(request.headers, REWRITE_HEADERS) or request.model or default


def _header(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Returns the first header in `names` that is present; the current name comes first."""
    for name in names:
        if value := headers.get(name):
            return value
    return ""
