"""A Qwen2-Audio of random numbers, 1 MB, as transformers writes one: sound in chats, up to 30 seconds an item."""

import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

from tests.vllm.llava import TEMPLATE, VOCAB, write_tokenizer

AUDIO_TOKEN_ID = 259
TOKENS_A_SECOND = 25
_MELS = 16


def write_qwen_audio(directory: Path) -> Path:
    """The checkpoint, its tokenizer and its processor."""
    import torch  # there is none where these tests do not run
    import transformers

    torch.manual_seed(0)
    text = transformers.Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2048,
        initializer_range=0.2,
    )  # fmt: skip
    audio = transformers.Qwen2AudioEncoderConfig(
        num_mel_bins=_MELS, d_model=64, encoder_layers=1, encoder_attention_heads=2,
        encoder_ffn_dim=64, initializer_range=0.2,
    )  # fmt: skip
    config = transformers.Qwen2AudioConfig(
        audio_config=audio, text_config=text, audio_token_index=AUDIO_TOKEN_ID
    )
    config.eos_token_id = 256
    model = transformers.Qwen2AudioForConditionalGeneration(config)
    model.float().save_pretrained(directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    new, there_are = "language_model.model.model.", "language_model.model."  # in the checkpoints
    save_file(
        {name.replace(new, there_are): value for name, value in tensors.items()},
        path,
        metadata={"format": "pt"},
    )
    anchors = {"<|AUDIO|>": AUDIO_TOKEN_ID, "<|audio_bos|>": 260, "<|audio_eos|>": 261}
    write_tokenizer(
        directory, anchors, chat_template=TEMPLATE, processor_class="Qwen2AudioProcessor"
    )
    transformers.WhisperFeatureExtractor(feature_size=_MELS).save_pretrained(directory)
    settings = {"processor_class": "Qwen2AudioProcessor", "audio_token": "<|AUDIO|>"}
    (directory / "processor_config.json").write_text(json.dumps(settings))
    return directory
