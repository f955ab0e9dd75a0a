"""What a caller says that a model's files are: it is so, or the model is refused."""

from pathlib import Path

import pytest

import weft
from tests.model.checkpoints import write_checkpoint
from tests.model.gguf.files import write_gguf
from tests.model.quantized.packers import awq, packed_tensors, rounded, write
from weft.cli.vllm_line import to_own_arguments
from weft.core.errors import ConfigError
from weft.engine.llm.llm_options import fit_options

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": True, "version": "gemm"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """One of each kind."""
    path: Path = tmp_path_factory.mktemp("models")
    plain = write_checkpoint(path / "plain")
    stored, _ = packed_tensors(lambda values: ((matrix := rounded(values)) and awq(matrix), values))
    return {
        "safetensors": str(plain),
        "gguf": str(write_gguf(path / "model.gguf", plain)),
        "awq": write(path / "awq", AWQ, stored),
        "drawn": "embedded:random",
        "built in": "embedded:tiny",
    }


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("safetensors", {"load_format": "safetensors"}), ("safetensors", {"load_format": "hf"}),
        ("gguf", {"load_format": "gguf"}), ("gguf", {"quantization": "gguf"}),
        ("gguf", {"load_format": "auto"}), ("awq", {"quantization": "awq_marlin"}),
        ("awq", {"load_format": "safetensors"}), ("built in", {"load_format": "safetensors"}),
        ("drawn", {"weight_format": "auto"}),
    ],
)  # fmt: skip
def test_what_is_so_is_served(models: dict[str, str], kind: str, given: dict[str, str]):
    """By the names that vLLM has for it, and ours."""
    assert fit_options(models[kind], given).checkpoint.card.name == models[kind]


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("safetensors", {"load_format": "gguf"}, "is safetensors, and a GGUF file is wanted; name one"),
        ("safetensors", {"quantization": "gguf"}, "a GGUF file is wanted"),
        ("safetensors", {"quantization": "awq"}, "is safetensors, and awq is wanted; leave the flag out"),
        ("awq", {"quantization": "gptq_marlin"}, "is safetensors and awq, and gptq is wanted"),
        ("gguf", {"load_format": "safetensors"}, "is gguf, and safetensors is wanted"),
        ("gguf", {"quantization": "awq"}, "is gguf, and awq is wanted"),
        ("built in", {"load_format": "gguf"}, "embedded:tiny is safetensors, and a GGUF file"),
        ("drawn", {"load_format": "gguf"}, "is drawn, and has no files"),
        ("drawn", {"weight_format": "safetensors"}, "is drawn, and has no files"),
    ],
)  # fmt: skip
def test_what_is_not_so_is_refused(models: dict[str, str], kind: str, given, words: str):
    """It was taken before, and did nothing."""
    with pytest.raises(ConfigError, match=words):
        fit_options(models[kind], given)
    with pytest.raises(ConfigError, match=words):
        weft.LLM(models[kind], **given)


def test_a_hub_model_is_refused_before_it_is_fetched():
    """Its name says that it is no file."""
    with pytest.raises(ConfigError, match="owner/name is safetensors, and a GGUF file is wanted"):
        fit_options("owner/name", {"load_format": "gguf"})


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--load-format", "gguf"], ["--weight-format=gguf"]),
        (["--load-format=auto"], []),
        (["-q", "awq_marlin"], ["--weight-format=awq"]),
        (["--quantization", "int8"], ["--quantization=int8"]),
    ],
)
def test_the_line_of_vllm_is_translated(words: list[str], own: list[str]):
    """A format is a flag of its own here; to round is another thing."""
    assert to_own_arguments(["m", *words]) == ["m", *own]


def test_other_loaders_are_refused_with_what_to_do_instead():
    """As before."""
    with pytest.raises(
        ConfigError, match=r"--load-format dummy is not supported: .*embedded:random"
    ):
        to_own_arguments(["m", "--load-format", "dummy"])
