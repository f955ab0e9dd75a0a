"""A Qwen2-Audio and a Voxtral of random numbers, 1 MB each, as transformers writes them: windows of two seconds."""

import json
from pathlib import Path
from typing import Any

from tests.vllm.llava import TEMPLATE, VOCAB, write_tokenizer

ANCHOR, SECONDS, MELS = 259, 2, 16
ASKED = "<|audio_bos|><|AUDIO|><|audio_eos|>"
_TEXT = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "initializer_range": 0.2, "eos_token_id": 256, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_AUDIO = {
    "num_mel_bins": MELS,
    "max_source_positions": 50 * SECONDS,
    "activation_function": "gelu",
    "initializer_range": 0.2,
}


def write_hearing(family: str, directory: Path) -> Any:
    """The model; its checkpoint, tokenizer and processor are in the directory."""
    import torch  # there is none where some tests do not run
    import transformers

    torch.manual_seed(0)
    model: Any
    if family == "qwen2_audio":
        audio: Any = transformers.Qwen2AudioEncoderConfig(
            d_model=64, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=64, **_AUDIO
        )
        text: Any = transformers.Qwen2Config(**_TEXT)
        config: Any = transformers.Qwen2AudioConfig(
            audio_config=audio, text_config=text, audio_token_index=ANCHOR
        )
        model = transformers.Qwen2AudioForConditionalGeneration(config)
    else:
        audio = transformers.VoxtralEncoderConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128,
            **_AUDIO,
        )  # fmt: skip
        text = transformers.LlamaConfig(**_TEXT)
        config = transformers.VoxtralConfig(
            audio_config=audio, text_config=text, audio_token_id=ANCHOR
        )
        model = transformers.VoxtralForConditionalGeneration(config)
    model = model.float().eval()
    model.save_pretrained(directory)
    anchors = {"<|AUDIO|>": ANCHOR, "<|audio_bos|>": 260, "<|audio_eos|>": 261}
    write_tokenizer(directory, anchors, chat_template=TEMPLATE)
    extractor = transformers.WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS)
    (directory / "preprocessor_config.json").write_text(json.dumps(extractor.to_dict()))
    return model
