"""The child process that runs one chat template: `python -m weft.text.templates.render_worker`.

It reads a line of JSON with its limits, then for each rendering one line: the template and, behind
a tab, its variables. It answers each with a line (see `weft.core.aio.worker`). If the line contains special tokens
instead of variables, the answer contains the template's facts.
"""

import json
from copy import deepcopy
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import msgspec

from weft.core.aio.worker import serve_lines
from weft.text.templates.template import OutputTooLong, TemplateRefusal, make_environment, render
from weft.text.templates.template_facts import find_facts


def main() -> None:
    """Serve the parent."""
    serve_lines(lambda setup: partial(_answer, setup))


def _answer(setup: dict[str, Any], line: str) -> dict[str, str]:
    try:
        head, _, tail = line.partition("\t")  # JSON text contains no unescaped tab
        source, call = json.loads(head)["source"], json.loads(tail)
        if "special_tokens" in call:
            return {"text": _facts(source, call, setup["max_chars"])}
        now = datetime.fromisoformat(call["now"])
        # Compiled for each call, under the limits too: compiling evaluates constant expressions. It takes a
        # millisecond.
        template = make_environment(lambda: now).from_string(source)
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


def _facts(source: str, call: dict[str, Any], max_chars: int) -> str:
    template = make_environment(datetime.now).from_string(source)

    def render_probe(messages: Any, tools: Any) -> str | None:
        variables = {"messages": deepcopy(messages), "tools": deepcopy(tools), "documents": None}
        try:
            return render(
                template,
                {**call["special_tokens"], **variables, "add_generation_prompt": True},
                max_chars,
            )
        except Exception:  # noqa: BLE001 - a template can raise anything; it does not take this form
            return None

    return msgspec.json.encode(find_facts(render_probe, has_tools=call["has_tools"])).decode()


if __name__ == "__main__":
    main()
