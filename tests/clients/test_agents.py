"""Real agents through a whole session: they ask, call tools, read the results, and are asked again.

The model is a script: embedded:echo repeats its prompt, and the chat template writes the answer there.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import running
from tests.clients.environments import AGENTS
from tests.clients.page import HTTP, QUESTION, SECTIONS, blocks, run_block, write_settings
from tests.clients.recorder import Exchange, recording

pytestmark = pytest.mark.clients

ECHO = "embedded:echo?max_len=400000"
FLAGS = ("--served-model-name", "local", "--no-grpc", "--tool-call-parser", "hermes",
         "--enable-auto-tool-choice")  # fmt: skip
AGAIN = "And once more?"
# What is said at a number of results; behind the first question all calls but the last are made. Results reach
# a template that writes none as texts in these tags.
SCRIPT = """
{%- set said = messages | tojson -%}
{%- set num_results = said.count("<tool_response>") -%}
{%- set num_calls = calls | length - (0 if again in said else 1) -%}
{%- if tools and num_results < num_calls -%}<tool_call>
{{ {"name": calls[num_results][0], "arguments": calls[num_results][1]} | tojson }}
</tool_call>
{%- else -%}That is all.{%- endif -%}<|endoftext|>"""
# Tools and systems first, as most models' templates have them; a system text later is refused.
PROMPT = """{{ tools | tojson if tools else "" }}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.role == "system" and not loop.first %}{{ raise_exception("system is first") }}{% endif %}
{{ message.content }}{{ message.tool_calls | tojson if message.tool_calls else "" }}<|im_end|>
{% endfor %}"""

CLAUDE_CALLS = (
    ("ToolSearch", {"query": "select:WebFetch", "max_results": 5}),
    ("Bash", {"command": "echo plum", "description": "Says a word"}),
    ("Read", {"file_path": "note.txt"}),
)
CODEX_CALLS = (
    ("exec_command", {"cmd": "echo plum"}),
    ("update_plan", {"plan": [{"step": "Look", "status": "completed"}]}),
    ("exec_command", {"cmd": "cat note.txt"}),
)


def script(calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """A chat template that answers with these calls."""
    return f"{{%- set calls, again = {json.dumps(calls)}, {json.dumps(AGAIN)} -%}}{SCRIPT}"


def run_session(name: str, heading: str, commands: Sequence[str], home: Path) -> list[Exchange]:
    """What an agent sent and got when it was asked by commands, with the settings of its section."""
    (environment,) = (one for one in AGENTS if one.name == name)
    if environment.missing is not None:
        pytest.skip(f"{environment.missing} is not installed")
    environment.make()
    (home / "note.txt").write_text("a word on paper: quince\n")
    calls = CLAUDE_CALLS if name == "claude-code" else CODEX_CALLS
    (home / "script.jinja").write_text(script(calls))
    flags = (*FLAGS, "--chat-template", str(home / "script.jinja"))
    with running(ECHO, *flags) as server, recording(server.http) as (address, seen):
        section = SECTIONS[heading].replace(HTTP, address)
        write_settings(section, home)
        (block,) = blocks(section, "sh")
        asked = block.splitlines()[-1]
        for command in commands:
            said = run_block(environment, "sh", block.replace(asked, command), home)
            assert "That is all." in said
    return seen


def num_prompt_and_cached(usage: dict[str, Any]) -> tuple[int, int]:
    """The tokens of a prompt, and those of them that were in the prefix cache; in the words of either API."""
    if "input_tokens_details" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


def check_prefixes(seen: Sequence[Exchange], home: Path) -> None:
    """Each prompt of the session begins with nearly all of the one before it."""
    (home / "prompt.jinja").write_text(PROMPT)
    with running(ECHO, *FLAGS, "--chat-template", str(home / "prompt.jinja")) as server:
        length = 0
        for exchange in seen:
            limit = "max_tokens" if "messages" in exchange.body else "max_output_tokens"
            answer = server.post(exchange.path, {**exchange.body, "stream": False, limit: 1})
            before, (length, cached) = length, num_prompt_and_cached(answer["usage"])
            assert cached >= 0.95 * before, f"{cached} of {before} tokens were found"


@pytest.mark.timeout(1800)
def test_claude_code_goes_through_a_session(tmp_path: Path):
    """It searches a tool, runs a command, and is asked again: nothing is refused, and the prompt stays cached."""
    ask = f'claude -p "{QUESTION}" --allowedTools "Bash(echo:*)"'
    seen = run_session(
        "claude-code", "Claude Code", (ask, f'claude -p --continue "{AGAIN}"'), tmp_path
    )
    turns = [exchange for exchange in seen if exchange.body.get("tools")]
    assert len(turns) == len(CLAUDE_CALLS) + 2
    assert [(one.status, one.warning) for one in seen] == [(200, None)] * len(seen)
    last = json.dumps(turns[-1].body["messages"])
    assert "plum" in last
    assert "quince" in last
    check_prefixes(turns, tmp_path)


@pytest.mark.timeout(1800)
def test_codex_goes_through_a_session(tmp_path: Path):
    """It runs commands, calls a tool of its own, and is asked again."""
    free = "--skip-git-repo-check -c sandbox_mode=danger-full-access"
    ask, resume = f'codex exec {free} "{QUESTION}"', f'codex exec resume --last {free} "{AGAIN}"'
    seen = run_session("codex", "Codex", (ask, resume), tmp_path)
    assert len(seen) == len(CODEX_CALLS) + 2
    assert [(one.status, one.warning) for one in seen] == [(200, None)] * len(seen)
    last = json.dumps(seen[-1].body["input"])
    assert "plum" in last
    assert "quince" in last
    assert {tool["type"] for tool in seen[0].body["tools"]} == {"function"}
    check_prefixes(seen[: len(CODEX_CALLS)], tmp_path)
