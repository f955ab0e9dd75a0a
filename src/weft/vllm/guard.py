"""`EngineGuard`: ends vLLM's engines when this process is gone. Killed, it cannot; and they would keep their memory."""

import subprocess
from collections.abc import Sequence

import psutil

# The shell reads until the other end of the pipe is closed, as it is when its holder dies in whatever way.
_SCRIPT = 'read -r _; kill -9 "$@"'
_ENGINE = "EngineCore"  # in the name that vLLM gives its processes; workers end with theirs


class EngineGuard:
    """A shell that waits beside the engines with these process ids, until `close`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._shell = None
        if pids:
            self._shell = subprocess.Popen(  # noqa: S603 - numbers
                ["/bin/sh", "-c", _SCRIPT, "sh", *map(str, pids)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us
            )

    def close(self) -> None:
        """The engines have ended: their ids may be others' soon. Idempotent."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            shell.communicate()


def guard_engines() -> EngineGuard:
    """Guards all engines that this process has started; some are its grandchildren."""
    found = psutil.Process().children(recursive=True)
    return EngineGuard([process.pid for process in found if _ENGINE in process.name()])
