"""Distributions of Weft and their optional dependencies: which of them are installed, and how to install an extra."""

from pathlib import Path

# The package index has another project under the name `weft` (docs/decisions/0080).
WHOLE = "weft-serve"
# The command of `weft` that each further distribution provides (docs/decisions/0082).
PARTS = {"epp": "weft-picker", "bench": "weft-bench"}
_SITE = Path(__file__).parents[2]


def installed(site: Path = _SITE) -> list[str]:
    """Returns the installed distributions of Weft in the directory `site`; for a clone, an empty list."""
    found = {
        path.name.partition("-")[0].replace("_", "-") for path in site.glob("weft_*.dist-info")
    }
    return sorted(found & {WHOLE, *PARTS.values()})


def how_to_install(extra: str) -> str:
    """Returns the shell command that installs an extra, for an installed package or for a clone."""
    name = next(iter(installed()), WHOLE)
    return f"pip install '{name}[{extra}]', or in a clone: pip install -e '.[{extra}]'"
