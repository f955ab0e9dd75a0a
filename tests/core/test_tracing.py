"""weft.core.observe.tracing"""

import pytest

from weft.core.observe.tracing import Parent, Span, Tracer, carried, read_parent, trace_id_of

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


class Sent:
    """A tracer, and the spans that it was to export."""

    def __init__(self, *, samples=lambda name, trace_id, parent: True):
        self.spans: list[Span] = []
        self.tracer = Tracer(samples, self.spans.append)


def test_a_header_names_the_parent():
    """Both ids, the flag and the state of other systems."""
    headers = {"traceparent": TRACEPARENT, "tracestate": "a=1,b=2"}
    expected = Parent(int(TRACE_ID, 16), int(SPAN_ID, 16), is_sampled=True, state="a=1,b=2")
    assert read_parent(headers) == expected
    assert trace_id_of(TRACEPARENT) == TRACE_ID


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00-1-2-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"{TRACEPARENT}-more",
        f"{TRACEPARENT}, {TRACEPARENT}",
    ],
)
def test_a_header_that_says_nothing_begins_a_new_trace(value: str):
    """W3C: what cannot be read is as if it were not there."""
    assert read_parent({"traceparent": value}) is None
    span = Sent().tracer.begin("a", {"traceparent": value})
    assert span.parent_id is None
    assert f"{span.trace_id:032x}" != TRACE_ID


def test_a_later_version_is_read_as_far_as_it_is_known():
    """It may have more behind the flags."""
    parent = read_parent({"traceparent": f"01-{TRACE_ID}-{SPAN_ID}-01-more"})
    assert parent is not None
    assert parent.is_sampled


@pytest.mark.parametrize("state", ["x" * 513, "a=\u00e9", "a=1\n"])
def test_a_state_that_could_not_be_passed_on_is_left_out(state: str):
    """The trace goes on without."""
    headers = {"traceparent": TRACEPARENT, "tracestate": f"{state}b"}
    parent = read_parent(headers)
    assert parent is not None
    assert parent.state == ""
    assert carried(headers) == {"traceparent": TRACEPARENT}


def test_who_is_called_finds_the_span_in_the_headers():
    """With the trace, the flag and the state that came."""
    span = Sent().tracer.begin("a", {"traceparent": TRACEPARENT, "tracestate": "a=1"})
    assert span.headers == {
        "traceparent": f"00-{TRACE_ID}-{span.span_id:016x}-01",
        "tracestate": "a=1",
    }


def test_a_trace_that_is_not_sampled_says_so_and_exports_nothing():
    """Whoever is called does not begin one of its own."""
    sent = Sent(samples=lambda name, trace_id, parent: False)
    span = sent.tracer.begin("a", {})
    part = span.child("b")
    part.end()
    span.end()
    assert span.headers["traceparent"].endswith("-00")
    assert sent.spans == []


def test_a_span_is_exported_once():
    """With its first end and its first error."""
    sent = Sent()
    span = sent.tracer.begin("a", {})
    span.fail("cause")
    span.fail("effect")
    span.end(span.started_ns + 5)
    span.end()
    assert sent.spans == [span]
    assert (span.error, span.ended_ns) == ("cause", span.started_ns + 5)


def test_what_clients_write_is_bounded_in_attributes():
    """A name of any length is no reason for a span of that length."""
    span = Sent().tracer.begin("a", {})
    span.set("long", "x" * 10_000)
    span.set("odd", "a\ud800")
    span.set("none", None)
    assert span.attributes == {"long": "x" * 256, "odd": "a?"}
