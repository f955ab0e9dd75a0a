"""Models of random numbers that hear, 1 MB each, as transformers writes them: windows of two seconds."""

import io
import json
import wave
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
_AUDIO = {"num_mel_bins": MELS, "activation_function": "gelu", "initializer_range": 0.2}
_WINDOW = {**_AUDIO, "max_source_positions": 50 * SECONDS}


def silence(seconds: float) -> bytes:
    """A WAV file of silence, small however long it is."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(1)
        writer.setframerate(1000)
        writer.writeframes(b"\x80" * round(1000 * seconds))
    return file.getvalue()


def extractor_of(family: str) -> Any:
    """The feature extractor of transformers."""
    import transformers
    from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

    if family == "qwen3_asr":
        return Qwen3ASRFeatureExtractor(feature_size=MELS)
    return transformers.WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS)


def write_hearing(family: str, directory: Path) -> Any:
    """The model; its checkpoint, tokenizer and processor are in the directory."""
    import torch  # there is none where some tests do not run
    import transformers

    text, audio, fields = _settings(family)
    config = transformers.AutoConfig.for_model(
        family, text_config=text, audio_config=audio, **fields
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForMultimodalLM.from_config(config).float().eval()
    model.save_pretrained(directory)
    anchors = {"<|AUDIO|>": ANCHOR, "<|audio_bos|>": 260, "<|audio_eos|>": 261}
    write_tokenizer(directory, anchors, chat_template=TEMPLATE)
    settings = json.dumps(extractor_of(family).to_dict())
    (directory / "preprocessor_config.json").write_text(settings)
    return model


def _settings(family: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Settings of text model and encoder, and further ones."""
    sizes = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    match family:
        case "qwen2_audio":
            audio = {**_WINDOW, **sizes, "d_model": 64, "model_type": "qwen2_audio_encoder"}
            return {**_TEXT, "model_type": "qwen2"}, audio, {"audio_token_index": ANCHOR}
        case "voxtral":
            own = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
            audio = {**_WINDOW, **own, "intermediate_size": 128, "model_type": "voxtral_encoder"}
            return {**_TEXT, "model_type": "llama"}, audio, {"audio_token_id": ANCHOR}
    chunks = {"d_model": 64, "downsample_hidden_size": 8, "n_window_infer": 100, "output_dim": 64}
    audio = {**_AUDIO, **sizes, **chunks, "model_type": "qwen3_asr_encoder"}
    fields = {"audio_token_id": ANCHOR, "eos_token_id": [256], "pad_token_id": 256}
    text = {**_TEXT, "head_dim": 32, "model_type": "qwen3"}
    return text, audio, {**fields, "tie_word_embeddings": False}
