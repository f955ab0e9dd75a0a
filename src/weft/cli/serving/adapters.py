"""`--lora-modules`: the LoRA adapters that a server loads at startup."""

from collections.abc import Sequence

import msgspec

from weft.core.client import EngineClient
from weft.core.errors import ConfigError, WeftError
from weft.core.values.types import LoRARequest


class _Module(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An adapter in the JSON form of --lora-modules."""

    name: str
    path: str
    base_model_name: str | None = None


def read_lora_modules(given: Sequence[str]) -> tuple[LoRARequest, ...]:
    """Returns the adapters in the given order; an adapter's id is its position, from 1."""
    modules = [_read(text) for text in given]
    names = [module.name for module in modules]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--lora-modules names {name!r} twice")
    return tuple(
        LoRARequest(
            lora_name=module.name,
            lora_int_id=place,
            lora_path=module.path,
            base_model_name=module.base_model_name,
        )
        for place, module in enumerate(modules, start=1)
    )


def _read(text: str) -> _Module:
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=_Module)
        except msgspec.DecodeError as error:
            raise ConfigError(f"--lora-modules {text[:80]!r}: {error}") from error
    name, separator, path = text.partition("=")
    if not separator:
        raise ConfigError(f"--lora-modules {text[:80]!r} must be NAME=DIRECTORY or JSON")
    return _Module(name=name, path=path)


async def load_lora_modules(client: EngineClient, modules: Sequence[LoRARequest]) -> None:
    """Loads all adapters. If one cannot be loaded, the start fails and the engine ends."""
    try:
        for module in modules:
            await client.add_lora(module)
    except BaseException as error:
        client.shutdown()
        await client.wait_closed()
        if isinstance(error, WeftError):
            raise ConfigError(f"--lora-modules: {error}") from error
        raise
