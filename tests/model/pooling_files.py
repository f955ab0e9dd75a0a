"""What stands beside the weights of a model that pools: a tokenizer for pairs, and who reads what how."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

WORDS = "the cat sat on a mat dog ran far in rain sun moon stars river boat".split()
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write_tokenizer(directory: Path) -> Path:
    """Words and the frame of BERT: [CLS] a [SEP] b [SEP], of two types."""
    directory.mkdir(parents=True, exist_ok=True)
    vocab = {token: i for i, token in enumerate([*SPECIALS, *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    write(directory / "tokenizer_config.json", {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    return directory


def write_modules(
    directory: Path, hidden_size: int, mode: str = "mean_tokens", *, normalize: bool = True
) -> Path:
    """modules.json and the pooling's config, as sentence-transformers saves them."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    write(directory / "modules.json", modules)
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    pooling = {f"pooling_mode_{name}": name == mode for name in modes}
    (directory / "1_Pooling").mkdir(exist_ok=True)
    write(
        directory / "1_Pooling" / "config.json",
        {"word_embedding_dimension": hidden_size, **pooling},
    )
    return directory


def change_config(directory: Path, **changes) -> Path:
    """Other values in config.json."""
    path = directory / "config.json"
    write(path, {**json.loads(path.read_text()), **changes})
    return directory


def write(path: Path, value) -> None:
    """`value` as JSON."""
    path.write_text(json.dumps(value))
