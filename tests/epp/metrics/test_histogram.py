"""Our histogram reads like the client library's."""

import prometheus_client as theirs
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from weft.epp.metrics.histogram import Histogram

BOUNDS = (0.0, 0.001, 0.5, 1, 32778, 1e9)
AMOUNTS = st.sampled_from(BOUNDS) | st.floats(-1, 2e9)


def lines(registry: theirs.CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode().splitlines()
    return [line for line in text if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(["a", 'b"\n']), AMOUNTS), max_size=20))
def test_it_is_written_as_the_librarys_is(observed: list[tuple[str, float]]):
    """Bounds are inclusive, buckets cumulative; without labels, too."""
    ours, reference = theirs.CollectorRegistry(), theirs.CollectorRegistry()
    labelled, bare = Histogram("h", "text", ("k",), BOUNDS), Histogram("g", "text", (), BOUNDS)
    ours.register(labelled)
    ours.register(bare)
    their_labelled = theirs.Histogram("h", "text", ("k",), buckets=BOUNDS, registry=reference)
    their_bare = theirs.Histogram("g", "text", buckets=BOUNDS, registry=reference)
    for value, amount in observed:
        for histogram in (labelled, their_labelled):
            histogram.labels(value).observe(amount)
        for histogram in (bare, their_bare):
            histogram.observe(amount)
    assert lines(ours) == lines(reference)
