"""How each engine of the comparison is started, by the name that `--engines` knows."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.peers.checkpoints import Shape, checkpoint, tensor_shapes, write_description
from benchmarks.peers.environments import (
    LLAMA,
    OPENVINO,
    ROOT,
    TRANSFORMERS,
    VLLM,
    Environment,
    vllm_variables,
)

HERE = Path(__file__).resolve().parent
Command = tuple[list[str], dict[str, str]]
"""Words, and variables beside those of this process."""


def _weft(*flags: str) -> Callable[[Shape], Command]:
    return lambda shape: _script(sys.executable, "weft", checkpoint(shape.name), *flags)


def _weft_gguf(kind: str) -> Callable[[Shape], Command]:
    return lambda shape: _script(sys.executable, "weft", gguf_file(shape, kind))


def _llama(kind: str) -> Callable[[Shape], Command]:
    return lambda shape: _script(LLAMA.python, "llama", gguf_file(shape, kind))


def _openvino(weights: str) -> Callable[[Shape], Command]:
    return lambda shape: _script(OPENVINO.python, "openvino", _openvino_model(shape, weights))


def _vllm(shape: Shape) -> Command:
    VLLM.make()
    words, _ = _script(VLLM.python, "vllm", checkpoint(shape.name))
    return words, vllm_variables(os.cpu_count() or 1)


def _transformers(script: str) -> Callable[[Shape], Command]:
    def command(shape: Shape) -> Command:
        TRANSFORMERS.make()
        return _script(TRANSFORMERS.python, script, checkpoint(shape.name))

    return command


def _script(python: Path | str, name: str, *words: object) -> Command:
    return [str(python), str(HERE / f"engine_{name}.py"), *map(str, words)], {}


ENGINES: Mapping[str, Callable[[Shape], Command]] = MappingProxyType(
    {
        "weft": _weft(),
        "weft auto": _weft("--max-num-batched-tokens=auto"),
        "weft int8": _weft("--quantization=int8"),
        "weft int4": _weft("--quantization=int4"),
        "weft q4_0": _weft_gguf("Q4_0"),
        "weft q4_k_m": _weft_gguf("Q4_K_M"),
        "vllm": _vllm,
        "llama.cpp": _llama("BF16"),
        "llama.cpp q8_0": _llama("Q8_0"),
        "llama.cpp q4_0": _llama("Q4_0"),
        "llama.cpp q4_k_m": _llama("Q4_K_M"),
        "openvino": _openvino("fp16"),
        "openvino int8": _openvino("int8"),
        "openvino int4": _openvino("int4"),
        "transformers": _transformers("transformers"),
        "transformers continuous": _transformers("transformers_continuous"),
    }
)


def gguf_file(shape: Shape, kind: str) -> Path:
    """The shape as a GGUF file, made where it is not there yet; by llama.cpp, but for what is drawn as it is."""
    file = ROOT / f"{shape.name}-{kind.lower()}.gguf"
    if file.exists():
        return file
    LLAMA.make()
    if kind in ("BF16", "Q4_0"):
        tensors = ROOT / f"{shape.name}-tensors.json"
        tensors.write_text(json.dumps(tensor_shapes(shape)))
        directory = write_description(shape, ROOT / shape.name)
        _make(LLAMA, file, "write_gguf.py", directory, tensors, kind)
    else:
        _make(LLAMA, file, "round_gguf.py", gguf_file(shape, "BF16"), kind)
    return file


def _openvino_model(shape: Shape, weights: str) -> Path:
    """The checkpoint as OpenVINO's own files."""
    directory = ROOT / f"{shape.name}-openvino-{weights}"
    if not directory.exists():
        OPENVINO.make()
        _make(OPENVINO, directory, "write_openvino.py", checkpoint(shape.name), weights)
    return directory


def _make(environment: Environment, target: Path, script: str, *words: object) -> None:
    """What `script` writes, under its name only when it is whole."""
    partial = target.with_name(f"partial-{target.name}")
    command = [environment.python, HERE / script, *words, partial]
    subprocess.run(list(map(str, command)), check=True)
    partial.rename(target)
