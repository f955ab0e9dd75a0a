"""Distributions of Weft and their optional dependencies: which is installed, and the command that installs an extra."""

from pathlib import Path

# The package index has another project under the name `weft` (docs/decisions/0080).
WHOLE = "weft-serve"
# Parts of the whole (docs/decisions/0082), by the command of `weft` that each has.
PARTS = {"epp": "weft-picker", "bench": "weft-bench"}
_SITE = Path(__file__).parents[2]


def installed(site: Path = _SITE) -> list[str]:
    """Returns the distributions that put their files beside this one; a clone has none."""
    found = {
        path.name.partition("-")[0].replace("_", "-") for path in site.glob("weft_*.dist-info")
    }
    return sorted(found & {WHOLE, *PARTS.values()})


def how_to_install(extra: str) -> str:
    """Returns the command that installs an extra, for an installed package and for a clone."""
    name = next(iter(installed()), WHOLE)
    return f"pip install '{name}[{extra}]', or in a clone: pip install -e '.[{extra}]'"
