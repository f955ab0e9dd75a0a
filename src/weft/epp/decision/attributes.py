"""Attributes: custom numbers of endpoints that filters and scorers compare, and the plugins that provide the
numbers.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, runtime_checkable

from weft.epp.config.parameters import Kind, Reference
from weft.epp.decision.plugin import METRICS_EXTRACTOR, Surroundings
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.gpu import DCGM_EXTRACTOR

# Older configuration files have both names in one.
_COMBINED: Final = f"/{DCGM_EXTRACTOR}"

Read = Callable[[Endpoint, float], float | None]


@runtime_checkable
class AttributeSource(Protocol):
    """A data extractor that stores attribute values of endpoints."""

    def attribute(self, endpoint: Endpoint, name: str, now: float) -> float | None:
        """Returns the value of an endpoint's attribute; None if the value is unknown or too old."""


def attribute_references(key: str, attribute: str, producer: str | None) -> Iterable[Reference]:
    """Yields a reference to the extractor that provides an attribute. If `producer` is empty, the load extractor
    provides the attribute.
    """
    _, name = _resolved(attribute, producer)
    if name:
        key = "producer" if producer is not None else key
        yield Reference(key, name, Kind.ATTRIBUTES, METRICS_EXTRACTOR)


def attribute_reader(attribute: str, producer: str | None, around: Surroundings) -> Read:
    """Returns a function that reads the attribute of an endpoint at a given time."""
    key, name = _resolved(attribute, producer)
    source = around.built.get(name)
    if isinstance(source, AttributeSource):
        return lambda endpoint, now: source.attribute(endpoint, key, now)
    return lambda endpoint, _: endpoint.load.attributes.get(key)


def _resolved(attribute: str, producer: str | None) -> tuple[str, str]:
    if producer is None and attribute.endswith(_COMBINED):
        return attribute.removesuffix(_COMBINED), DCGM_EXTRACTOR
    return attribute, METRICS_EXTRACTOR if producer is None else producer
