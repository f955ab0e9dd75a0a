"""weft.cli.arguments.sizes"""

import pytest

from weft.core.config.quantity import parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1.5k", 1500),
        ("2m", 2_000_000),
        ("4G", 4 << 30),
        ("4GB", 4_000_000_000),
        ("4GiB", 4 << 30),
        ("512 MiB", 512 << 20),
        ("100B", 100),
        ("-1", -1),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, value: int):
    """Lower-case steps are 1000 and upper-case 1024, until a unit says which."""
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "k", "12q", "1e3", "1.0001k", "0x10", "1 2", "GiB", "nan"])
def test_what_is_no_size_is_refused(text: str):
    """The message repeats what was given."""
    with pytest.raises(ValueError, match="is not a"):
        parse_size(text)
