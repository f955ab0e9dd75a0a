"""A Whisper of random numbers, 1 MB, as transformers writes one: it hears two seconds at a time."""

import io
import json
import wave
from pathlib import Path

import numpy as np

from weft.model.embedded.byte_tokenizer import tokenizer_files

CLIP_S = 2
RATE = 16_000
_MARKS = ("<|startoftranscript|>",)
_TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>",
          "<|notimestamps|>")  # fmt: skip
_FIRST_ID = 257  # behind the bytes and the end of text, which tokenizers of bytes have already


def write_whisper(directory: Path, **changes) -> Path:
    """The checkpoint, its tokenizer and its processor; `changes` are of its config."""
    import torch  # there is none where these tests do not run
    import transformers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    specials = [*_MARKS, *(f"<|{code}|>" for code in LANGUAGES), *_TASKS]
    times = [f"<|{n * 0.02:.2f}|>" for n in range(1501)]
    ids = {text: number for number, text in enumerate([*specials, *times], start=_FIRST_ID)}
    torch.manual_seed(0)
    settings = {
        "vocab_size": _FIRST_ID + len(ids), "num_mel_bins": 16, "d_model": 64,
        "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "init_std": 0.5,
        "max_source_positions": CLIP_S * 50, "max_target_positions": 64,
        "decoder_start_token_id": _FIRST_ID, "bos_token_id": 256, "eos_token_id": 256,
        "pad_token_id": 256, "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    config = transformers.WhisperConfig(**settings | changes)
    transformers.WhisperForConditionalGeneration(config).float().save_pretrained(directory)
    seconds = config.max_source_positions // 50
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=seconds)
    extractor.save_pretrained(directory)
    _write_tokenizer(directory, ids, len(specials))
    return directory


def _write_tokenizer(directory: Path, ids: dict[str, int], num_special: int) -> None:
    files = {
        name: json.loads(data)
        for name, data in tokenizer_files(_FIRST_ID + 2, "<|endoftext|>").items()
    }
    tokenizer, settings = files["tokenizer.json"], files["tokenizer_config.json"]
    end = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [
        end,
        *(
            {**end, "id": number, "content": text, "special": place < num_special}
            for place, (text, number) in enumerate(ids.items())
        ),
    ]
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        text: number for text, number in vocab.items() if number < _FIRST_ID
    } | ids
    del settings["chat_template"]
    settings |= {
        "tokenizer_class": "WhisperTokenizer",
        "bos_token": "<|endoftext|>",
        "processor_class": "WhisperProcessor",
    }
    for name, document in files.items():
        (directory / name).write_text(json.dumps(document))
    (directory / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    (directory / "merges.txt").write_text("")


def sound(seconds: float, pitch: float = 440.0) -> bytes:
    """A WAV file of a tone that swells, with one channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        count = int(seconds * RATE)
        at = np.arange(count)
        values = 20_000 * np.sin(pitch * 6.283 * at / RATE) * (at % 8000) / 8000
        writer.writeframes(values.astype("<i2").tobytes())
    return file.getvalue()
