"""Attributes: numbers by which endpoints are compared, besides their load, with the plugins that provide them."""

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
    """Implemented by extractors that hold values of their own."""

    def attribute(self, endpoint: Endpoint, name: str, now: float) -> float | None:
        """The value; None if it is unknown or too old."""


def attribute_references(key: str, attribute: str, producer: str | None) -> Iterable[Reference]:
    """Yields a reference to the extractor of an attribute; an empty producer name means the extractor of the load."""
    _, name = _resolved(attribute, producer)
    if name:
        key = "producer" if producer is not None else key
        yield Reference(key, name, Kind.ATTRIBUTES, METRICS_EXTRACTOR)


def attribute_reader(attribute: str, producer: str | None, around: Surroundings) -> Read:
    """Reads an attribute of an endpoint, at a time."""
    key, name = _resolved(attribute, producer)
    source = around.built.get(name)
    if isinstance(source, AttributeSource):
        return lambda endpoint, now: source.attribute(endpoint, key, now)
    return lambda endpoint, _: endpoint.load.attributes.get(key)


def _resolved(attribute: str, producer: str | None) -> tuple[str, str]:
    if producer is None and attribute.endswith(_COMBINED):
        return attribute.removesuffix(_COMBINED), DCGM_EXTRACTOR
    return attribute, METRICS_EXTRACTOR if producer is None else producer
