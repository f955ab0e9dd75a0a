import pytest

from weft.core.config.quantity import parse_duration_s, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), (500, 500), ("1k", 1000), ("1Ki", 1024), ("1Gi", 2**30), ("1.5G", 1_500_000_000),
     ("2e3", 2000), ("100m", 1), ("1500m", 2), ("-1", -1), (".5k", 500), ("7.", 7)],
)  # fmt: skip
def test_quantities_are_whole_numbers(text: str | int, value: int):
    """Fractions are rounded up, as Kubernetes does."""
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1kk", "1Gib", "١", "1e400", "9" * 40, "1E99"])
def test_what_is_no_quantity_is_refused(text: str):
    """Also numbers no counter can hold."""
    with pytest.raises(ValueError, match="must be"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("50ms", 0.05),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("-2s", -2),
        ("3µs", 3e-6),
    ],
)
def test_durations_are_seconds(text: str, seconds: float):
    """Go's spelling."""
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "1s2", "1 s", "1d", "1s ms"])
def test_what_is_no_duration_is_refused(text: str):
    """A number needs its unit."""
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration_s(text)
