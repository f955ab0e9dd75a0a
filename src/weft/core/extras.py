"""Optional dependencies of Weft: how to install an extra, in the words of an error message."""

DISTRIBUTION = "weft-serve"  # the package index has another project under the name `weft` (docs/decisions/0080)


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for an installed package and for a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]', or in a clone: pip install -e '.[{extra}]'"
