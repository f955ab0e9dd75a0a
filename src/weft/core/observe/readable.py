"""Formats numbers for people."""


def format_bytes(num_bytes: int) -> str:
    """Returns `num_bytes` with three or four digits: "4 GiB", "1023 MiB"."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            digits = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
            return f"{num_bytes} B" if unit == "B" else f"{digits} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def format_left(seconds: float) -> str:
    """Returns an estimated time as text: "8 s", "3 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
