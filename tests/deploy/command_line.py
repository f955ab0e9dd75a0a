"""Whether a command line of ours would be taken."""

import shlex

from weft.cli.commands import make_app


def is_taken(line: str) -> bool:
    """Parse it; raises what the command line says against it."""
    app = make_app()
    app.config = ()  # the files that they name are not there
    app.parse_args(shlex.split(line), exit_on_error=False, print_error=False)
    return True
