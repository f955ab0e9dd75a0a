"""Optional dependencies of Weft: the install command of an extra, for error messages."""

DISTRIBUTION = "weft-serve"  # the package index has another project under the name `weft` (docs/decisions/0080)


def how_to_install(extra: str) -> str:
    """Returns the command that installs an extra, for an installed package and for a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]', or in a clone: pip install -e '.[{extra}]'"
