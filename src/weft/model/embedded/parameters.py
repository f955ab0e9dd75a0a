"""The part after `?` in `embedded:…?key=value&…`: parsing, with errors that name the key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from weft.core.errors import ConfigError
from weft.model.fields import shown


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters in the name of an embedded model. Error messages list the keys in `allowed`."""

    model: str
    values: Mapping[str, str]
    allowed: tuple[str, ...]

    def refuse(self, key: str, allowed: str) -> NoReturn:
        """Raises a `ConfigError` that names `key` and the `allowed` values."""
        raise ConfigError(
            f"embedded:{self.model}: {key} is {shown(self.values[key])}; it must be {allowed}"
        )

    def integer(self, key: str, default: int, *, low: int = 1, high: int = 2**24) -> int:
        """Returns the whole number of `key` in [low, high]; `default` if the key is absent."""
        text = self.values.get(key)
        if text is None:
            return default
        if (
            not text.isascii()
            or not text.isdigit()
            or len(text) > 20
            or not low <= int(text) <= high
        ):
            self.refuse(key, f"a whole number from {low} to {high}")
        return int(text)

    def milliseconds(self, key: str) -> float:
        """Returns the value of `key`, given in milliseconds, in seconds; 0 if the key is absent."""
        text = self.values.get(key)
        if text is None:
            return 0.0
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 600_000:
            self.refuse(key, "a number of milliseconds from 0 to 600000")
        return value / 1000

    def flag(self, key: str) -> bool:
        """Returns the value of `key`, true or false; False if the key is absent."""
        text = self.values.get(key, "false").lower()
        if text not in ("true", "false", "1", "0"):
            self.refuse(key, "true or false")
        return text in ("true", "1")

    def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        """Returns the value of `key`, one of `choices`; `default` if the key is absent."""
        text = self.values.get(key, default)
        if text not in choices:
            self.refuse(key, "one of " + ", ".join(choices))
        return text


def parse_parameters(model: str, query: str, allowed: tuple[str, ...]) -> Parameters:
    """Parses `query`, key=value pairs joined by &; raises `ConfigError` for unknown, repeated and empty keys."""
    values: dict[str, str] = {}
    for pair in query.split("&") if query else []:
        key, equals, value = pair.partition("=")
        if key not in allowed:
            offer = f"allowed are {', '.join(allowed)}" if allowed else "it takes none"
            raise ConfigError(f"embedded:{model}: unknown parameter {shown(key)}; {offer}")
        if key in values:
            raise ConfigError(f"embedded:{model}: {key} is given twice; give it once")
        if not equals or not value:
            raise ConfigError(f"embedded:{model}: {key} has no value; write {key}=…")
        values[key] = value
    return Parameters(model, values, allowed)
