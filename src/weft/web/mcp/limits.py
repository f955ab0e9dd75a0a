"""What a server of tools, and a response that calls them, may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """`max_turns` and `max_calls` are of one response, `max_received_bytes` and `max_session_s` of one session."""

    max_turns: int = 32
    max_calls: int = 128
    max_servers: int = 8
    max_listed_tools: int = 128
    max_result_chars: int = 256 * 1024
    max_received_bytes: int = 16 * 1024 * 1024
    max_sessions: int = 256
    connect_timeout_s: float = 15.0
    call_timeout_s: float = 120.0
    max_session_s: float = 900.0
