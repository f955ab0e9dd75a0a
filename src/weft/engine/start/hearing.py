"""Decides how an engine takes sounds: from flags and the model's files to a configuration, or a refusal."""

import msgspec

from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.media import SpeechConfig
from weft.core.values.pictures import SoundsConfig
from weft.model.card import ModelCard

_TILE = 16  # keys that are stored together
_LEAST_LEN = 16  # tokens: half of them for what was said before, and half for the answer
_WIDENED = 4  # bytes of a number beside one in int8


def with_sounds(config: EngineConfig, card: ModelCard, output_bytes: int) -> EngineConfig:
    """Returns the configuration with its sounds; raises `ConfigError` for flags that do not go with them."""
    if card.sounds is None:
        return config
    for flag, is_given in _refused(config, card).items():
        if is_given:
            raise ConfigError(f"{flag} is not supported for models of speech yet; leave it out")
    if config.model_config.max_model_len < _LEAST_LEN:
        raise ConfigError(
            f"--max-model-len must be at least {_LEAST_LEN} for a model of speech, not "
            f"{config.model_config.max_model_len}"
        )
    sounds = SoundsConfig(
        tokens=card.sounds.tokens,
        num_mels=card.sounds.num_mels,
        num_columns=card.sounds.num_columns,
        memory_bytes=_memory_bytes(card, card.sounds.num_columns // 2),
        output_bytes=output_bytes,
        max_step_rows=config.scheduler_config.max_num_batched_tokens,
    )
    speech = SpeechConfig(first_timestamp_id=card.sounds.tokens.first_timestamp, is_only=True)
    model = msgspec.structs.replace(config.model_config, speech=speech)
    return msgspec.structs.replace(config, model_config=model, sounds_config=sounds)


def _memory_bytes(card: ModelCard, num_rows: int) -> int:
    """Returns the keys and values of one sound: as those of so many tokens, and never in int8."""
    times = _WIDENED if card.kv_dtype == "int8" else 1
    return -(-num_rows // _TILE) * _TILE * card.kv_bytes_per_token * times


def _refused(config: EngineConfig, card: ModelCard) -> dict[str, bool]:
    compute, mode = config.compute_config, config.model_config.logprobs_mode
    return {
        "--compute gpu": compute is not None and compute.compute == "gpu",
        "--quantization": compute is not None and compute.quantization is not None,
        "a checkpoint with quantized weights": card.stored_bits is not None,
        "--speculative-config": config.scheduler_config.speculation is not None,
        "--kv-transfer-config": config.kv_transfer_config is not None,
        "--enable-lora": config.lora_config is not None,
        f"--logprobs-mode {mode.value}": mode
        in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS),
    }
