"""vLLM's `LoRARequest`, which programs write by position."""

from weft.core.values.types import LoRARequest as _Own


class LoRARequest(_Own, frozen=True):
    """An adapter: its name, its id and its directory."""

    lora_name: str
    lora_int_id: int
    lora_path: str
