"""`weft completion`: prints the completion script of a shell."""

from typing import Literal

from weft.cli.commands import make_app
from weft.core.observe.terminal import say


def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the completion of this command line.

    Parameters
    ----------
    shell
        The shell that is to complete.
    """
    say(make_app().generate_completion(prog_name="weft", shell=shell), end="")
    return 0
