"""Settings from the environment and from a file, for options that the command line does not set."""

import os
from importlib import import_module

from cyclopts import App, ArgumentCollection
from cyclopts.config import Env

from weft.core.errors import ConfigError, Unauthenticated

# Messages about translated flags of vLLM, for the log; set internally, never by users.
NOTES = "--translated"
VLLM_WORDS = "--vllm-words"  # arguments for vLLM's engine; set internally, never by users
_KEYS = ("--api-key", "--control-api-key")


def apply_config_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Sets each argument that has no value yet from the file of --config.

    The parser calls this function after it has read argv and the environment, so both override the file.
    """
    path = next((a.tokens[0].value for a in arguments if a.name == "--config" and a.tokens), None)
    if path is not None:
        import_module("weft.cli.arguments.config_file").apply(path, app, commands, arguments)


def refuse_empty_key(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raises `ConfigError` if the environment variable of a key is set but empty: an empty variable is a mistake of a
    deployment and must not turn authentication off.
    """
    del app, commands
    for flag in _KEYS:
        name = "WEFT_" + flag.removeprefix("--").replace("-", "_").upper()
        value = os.environ.get(name)
        is_wanted = any(argument.name == flag and not argument.tokens for argument in arguments)
        if is_wanted and value is not None and not value.strip():
            raise ConfigError(f"{name} is set but empty; unset it, or give it a key")


def wrong_key(given: str | None) -> Unauthenticated:
    """Returns the client's error for a server that rejected the API key `given`; None means that no key was sent."""
    problem = "requires an API key" if given is None else "rejected the API key"
    return Unauthenticated(f"the server {problem}: set --api-key KEY or WEFT_API_KEY")


SOURCES = (Env("WEFT_", command=False), refuse_empty_key, apply_config_file)
