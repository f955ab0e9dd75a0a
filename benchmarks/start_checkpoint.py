"""The checkpoints that `start.py` starts: weights of `peers`, and a tokenizer that costs what a real one does."""

import json
import random
from pathlib import Path

import tokenizers

from benchmarks.peers.checkpoints import SHAPES, Shape, write_checkpoint
from benchmarks.peers.environments import ROOT

SHAPE_BY_NAME = {shape.name: shape for shape in SHAPES}
_LONGEST = 16  # characters of a token
# As chat models have: it is parsed at the start, twice.
_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


def checkpoint(name: str) -> Path:
    """The directory, made where it is not there yet."""
    shape = SHAPE_BY_NAME[name]
    weights = write_checkpoint(shape, ROOT / shape.name).resolve()
    directory = ROOT.parent / "start" / name
    if (directory / "tokenizer_config.json").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        (directory / file).unlink(missing_ok=True)
        (directory / file).symlink_to(weights / file)
    _write_tokenizer(shape, directory)
    return directory


def _write_tokenizer(shape: Shape, directory: Path) -> None:
    """Byte-level pairs, as many as the vocabulary holds: reading them is part of a start."""
    dice = random.Random(0)
    tokens = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    known = set(tokens)
    merges: list[tuple[str, str]] = []
    while len(tokens) < shape.vocab - 2:
        first, second = dice.choice(tokens), dice.choice(tokens)
        joined = first + second
        if len(joined) <= _LONGEST and joined not in known:
            known.add(joined)
            tokens.append(joined)
            merges.append((first, second))
    model = tokenizers.models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": _TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
