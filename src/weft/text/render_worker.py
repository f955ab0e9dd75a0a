"""The child process that runs one chat template: `python -m weft.text.render_worker SECONDS`.

It reads a line of JSON with the template and its limits, then one line of variables for each
rendering, and answers each with a line. A rendering that takes too long ends the process, whatever
it is doing, and one that takes too much memory fails or does; the parent sees the pipe close.
"""

import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2

from weft.text.template import OutputTooLong, TemplateRefusal, make_environment, render


def main() -> None:
    """Serve until standard input closes, which it also does when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may be draining
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the default is to die: also in the midst of C
    setup = json.loads(sys.stdin.readline())
    limit = setup["max_memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, setup["time_limit_s"])
        answer = _answer(setup, line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _answer(setup: dict[str, Any], line: str) -> dict[str, str]:
    try:
        call = json.loads(line)
        now = datetime.fromisoformat(call["now"])
        # Compiled for each call: it costs a millisecond, and evaluates constant expressions, so it
        # belongs under the limits too.
        template = make_environment(lambda: now).from_string(setup["source"])
        return {"text": render(template, call["variables"], setup["max_chars"])}
    except TemplateRefusal as error:
        return {"error": str(error)[:500]}
    except OutputTooLong:
        return {"error": f"the rendered text is longer than {setup['max_chars']} characters"}
    except MemoryError:
        return {"error": "rendering took too much memory"}
    except (jinja2.TemplateError, RecursionError) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    except Exception as error:  # noqa: BLE001 - a template can raise anything; it ends this call only
        return {"error": f"{type(error).__name__}: {str(error)[:500]}"}


if __name__ == "__main__":
    main()
