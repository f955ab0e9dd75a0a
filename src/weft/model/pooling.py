"""`PoolingSpec`: how a model that does not generate text pools hidden states.

The spec is read from config.json and from the files of sentence-transformers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath

from weft.core.errors import ConfigError
from weft.core.values.types import PoolingKind
from weft.model.fields import Fields, parse_object, read_bytes, read_fields, shown
from weft.model.switches import Activation

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTHS = ("sentence_bert_config.json", "sentence_roberta_config.json")
MAX_LABELS = 2**16

_POOLING_PREFIX = "pooling_mode_"


class Scale(StrEnum):
    """Function that is applied to a classifier's scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """A classifier: optionally a linear layer with an activation and a norm, then one linear layer to the labels."""

    kind: PoolingKind
    labels: tuple[str, ...]
    scale: Scale
    has_dense: bool = False
    dense_bias: bool = True
    activation: Activation = Activation.TANH
    has_norm: bool = False
    norm_bias: bool = False
    norm_eps: float = 1e-5
    has_bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSpec:
    """Pooling of a model. With a `head` the model classifies; without, it makes embeddings.

    `dimensions` are the lengths to which an embedding may be shortened; empty with `is_matryoshka` means any length.
    `default_length` is the number of tokens that the authors recommend. `prompt` is prepended to every text; `prompts`
    are those that callers choose by name.
    """

    hidden_size: int
    kind: PoolingKind
    normalize: bool
    dimensions: tuple[int, ...] = ()
    is_matryoshka: bool = False
    default_length: int | None = None
    lowercases: bool = False
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    head: HeadSpec | None = None

    @property
    def kinds(self) -> dict[str, PoolingKind]:
        """Tasks of the model, each with the hidden states that it pools."""
        if self.head is None:
            return {"embed": self.kind, "token_embed": PoolingKind.EACH}
        is_of_tokens = self.head.kind is PoolingKind.EACH
        return {"token_classify" if is_of_tokens else "classify": self.head.kind}


def is_embedder(path: Path) -> bool:
    """True if the directory has files of sentence-transformers."""
    return (path / MODULES).exists()


def read_embedding(
    path: Path, config: Fields, hidden_size: int, default: PoolingKind
) -> PoolingSpec:
    """Returns how the checkpoint at `path` makes embeddings; `default`, normalised, if no file says so."""
    kind, normalize = default, True
    if is_embedder(path):
        kind, normalize = _read_modules(path, hidden_size, default)
    length, lowercases = _read_length(path)
    is_matryoshka, dimensions = _read_dimensions(config, hidden_size)
    prompt, prompts = _read_prompts(path)
    return PoolingSpec(
        hidden_size=hidden_size,
        kind=kind,
        normalize=normalize,
        dimensions=dimensions,
        is_matryoshka=is_matryoshka,
        default_length=length,
        lowercases=lowercases,
        prompt=prompt,
        prompts=prompts,
    )


def read_labels(config: Fields) -> tuple[str, ...]:
    """Returns the names of the classes, in the order of their numbers."""
    named = config.object("id2label")
    count = config.integer_or("num_labels", len(named.values) if named else 2, high=MAX_LABELS)
    if named is None:
        return tuple(f"LABEL_{index}" for index in range(count))
    labels = [named.values.get(str(index)) for index in range(len(named.values))]
    if len(labels) != count or not all(isinstance(label, str) for label in labels):
        config.refuse("id2label", f"an object with the texts of classes 0 to {count - 1}")
    return tuple(str(label) for label in labels)


def read_scale(config: Fields, num_labels: int) -> Scale:
    """Returns the function for scores: the one in a cross-encoder's config, or else the one for the problem type."""
    nested = config.object("sentence_transformers") or Fields({}, config.where)
    for fields, key in (
        (nested, "activation_fn"),
        (config, "sbert_ce_default_activation_function"),
    ):
        if fields.has(key):
            return _named_scale(fields, key)
    single = Scale.SOFTMAX if num_labels > 1 else Scale.SIGMOID
    scales = {"regression": Scale.NONE, "multi_label_classification": Scale.SIGMOID}
    scales["single_label_classification"] = single
    problem = config.text("problem_type") if config.has("problem_type") else ""
    if problem and problem not in scales:
        config.refuse("problem_type", "one of " + ", ".join(scales))
    return scales.get(problem, single)


def _named_scale(fields: Fields, key: str) -> Scale:
    scales = {
        "torch.nn.modules.linear.Identity": Scale.NONE,
        "torch.nn.modules.activation.Sigmoid": Scale.SIGMOID,
        "torch.nn.modules.activation.Softmax": Scale.SOFTMAX,
    }
    name = fields.text(key)
    if name not in scales:
        fields.refuse(key, "one of " + ", ".join(scales))
    return scales[name]


# -- sentence-transformers' files ---------------------------------------------------------------


def _read_modules(path: Path, hidden_size: int, default: PoolingKind) -> tuple[PoolingKind, bool]:
    """Returns the pooling after the transformer, and whether a normalisation follows."""
    where = path / MODULES
    kind, normalize = default, False
    for name, directory in _modules(where)[1:]:
        match name:
            case "Pooling":
                kind = _read_pooling(path / directory / "config.json", hidden_size)
            case "Normalize":
                normalize = True
            case _:
                raise ConfigError(
                    f"{where}: module {shown(name)} is not implemented; Transformer, Pooling and "
                    "Normalize are"
                )
    return kind, normalize


def _modules(where: Path) -> list[tuple[str, str]]:
    """Returns the type and directory of each module, in order; the first module is the transformer itself."""
    # The file is a list, but `parse_object`, which has the necessary checks, reads only objects.
    listed = parse_object(b'{"modules":' + read_bytes(where) + b"}", str(where))["modules"]
    found = []
    for entry in listed if isinstance(listed, list) else [None]:
        fields = Fields(entry if isinstance(entry, dict) else {}, str(where))
        directory = fields.values.get("path", "")
        parts = PurePosixPath(str(directory)).parts
        if not isinstance(directory, str) or ".." in parts or "/" in parts:
            fields.refuse("path", "a directory beside the file")
        found.append((fields.text("type").rpartition(".")[2], directory))
    if not found or found[0][0] != "Transformer" or found[0][1] not in ("", "."):
        raise ConfigError(f"{where}: the first module must be a Transformer with an empty path")
    return found


def _read_pooling(where: Path, hidden_size: int) -> PoolingKind:
    fields = read_fields(where)
    if fields.integer_or("word_embedding_dimension", hidden_size) != hidden_size:
        fields.refuse("word_embedding_dimension", f"the hidden_size ({hidden_size})")
    kinds = {"cls_token": PoolingKind.CLS, "lasttoken": PoolingKind.LAST}
    kinds["mean_tokens"] = PoolingKind.MEAN
    if fields.has("pooling_mode"):  # the newer setting: one name
        kinds = {"cls": PoolingKind.CLS, "lasttoken": PoolingKind.LAST, "mean": PoolingKind.MEAN}
        chosen = [fields.text("pooling_mode")]
    else:
        modes = (key for key in fields.values if key.startswith(_POOLING_PREFIX))
        chosen = [m.removeprefix(_POOLING_PREFIX) for m in modes if fields.flag_or(m, False)]
    if len(chosen) != 1 or chosen[0] not in kinds:
        raise ConfigError(
            f"{where}: pooling by {shown(' and '.join(chosen))} is not implemented; one of "
            f"{', '.join(kinds)} is"
        )
    return kinds[chosen[0]]


def _read_length(path: Path) -> tuple[int | None, bool]:
    for name in LENGTHS:
        if (path / name).exists():
            fields = read_fields(path / name)
            length = fields.integer("max_seq_length") if fields.has("max_seq_length") else None
            return length, fields.flag_or("do_lower_case", False)
    return None, False


def _read_prompts(path: Path) -> tuple[str, dict[str, str]]:
    """Returns the prompt to prepend to every text, "" unless the authors set a default prompt; and all by name."""
    if not (path / PROMPTS).exists():
        return "", {}
    fields = read_fields(path / PROMPTS)
    if fields.values.get("similarity_fn_name") not in (None, "cosine"):
        fields.refuse("similarity_fn_name", "cosine")
    given: Mapping[str, object] = (fields.object("prompts") or Fields({}, fields.where)).values
    prompts = {name: prompt for name, prompt in given.items() if isinstance(prompt, str)}
    if not fields.has("default_prompt_name"):
        return "", prompts
    prompt = prompts.get(fields.text("default_prompt_name"))
    if not isinstance(prompt, str):
        fields.refuse("default_prompt_name", f"one of {shown(json.dumps(sorted(prompts)))}")
    return prompt, prompts


def _read_dimensions(config: Fields, hidden_size: int) -> tuple[bool, tuple[int, ...]]:
    listed = config.values.get("matryoshka_dimensions")
    if listed is None:
        return config.flag_or("is_matryoshka", False), ()
    if not isinstance(listed, list) or not all(
        type(size) is int and 1 <= size <= hidden_size for size in listed
    ):
        config.refuse("matryoshka_dimensions", f"a list of whole numbers from 1 to {hidden_size}")
    return True, tuple(sorted(listed))
