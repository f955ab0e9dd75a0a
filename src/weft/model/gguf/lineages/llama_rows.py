"""Rows of GGUF architectures of Llama and of families with its form."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.gguf.architecture import GRANITE, WINDOW, Architecture, Metadata, read_windows
from weft.model.gguf.names import GPT_OSS, PHI3, SEED_OSS

_OLMO = {**WINDOW, "rope.freq_base_swa": "rope_local_base_freq"}


def _read_olmo(file: Metadata) -> None:
    """Reads whether the file is of OLMo 3, which has windows, or of OLMo 2."""
    if file.config.get("sliding_window"):
        file.config["model_type"] = "olmo3"
        read_windows(file.config, file.said)


def _read_minicpm(file: Metadata) -> None:
    """Adds the factors of MiniCPM that older files leave out, as settings of Granite's, which is computed alike."""
    config = file.config
    width, layers, hidden = (
        config[key] for key in ("head_dim", "num_hidden_layers", "hidden_size")
    )
    if isinstance(width, int) and isinstance(layers, int) and isinstance(hidden, int) and layers:
        config.setdefault("attention_multiplier", width**-0.5)
        config.setdefault("residual_multiplier", 1.4 / layers**0.5)
        config.setdefault("logits_scaling", hidden / 256)
    config.setdefault("embedding_multiplier", 12.0)


LLAMA_ROWS: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture(
            model_type="llama", is_interleaved=True, model_type_with_experts="mixtral"
        ),
        "olmo2": Architecture(model_type="olmo2", keys=_OLMO, read_own=_read_olmo),
        "granite": Architecture(
            model_type="granite",
            keys=GRANITE,
            is_interleaved=True,
        ),
        "smollm3": Architecture(model_type="smollm3", is_interleaved=True),
        "olmoe": Architecture(model_type="olmoe", model_type_with_experts="olmoe", adds_up=False),
        "granitemoe": Architecture(
            model_type="granitemoe",
            keys=GRANITE,
            is_interleaved=True,
            model_type_with_experts="granitemoe",
        ),
        "gpt-oss": Architecture(
            model_type="gpt_oss",
            keys=WINDOW,
            names=GPT_OSS,
            model_type_with_experts="gpt_oss",
            truncates=False,
        ),
        "arcee": Architecture(model_type="arcee", is_interleaved=True),
        "seed_oss": Architecture(
            model_type="seed_oss",
            names=SEED_OSS,
        ),
        "hunyuan-dense": Architecture(model_type="hunyuan_v1_dense"),
        "minicpm": Architecture(
            model_type="granite", keys=GRANITE, is_interleaved=True, read_own=_read_minicpm
        ),
        "exaone4": Architecture(model_type="exaone4", keys=WINDOW, has_optional_windows=True),
        "phi3": Architecture(model_type="phi3", keys=WINDOW, names=PHI3, has_optional_windows=True),
    }
)
