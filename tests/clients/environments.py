"""The real clients' packages, each client in an environment of its own in `build/clients`, made once.

Versions are pinned: a release of somebody else's must not change what a test of ours says.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "build" / "clients"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where `script`, a file of `scripts`, runs, and what pip installs there."""

    name: str
    script: str
    packages: tuple[str, ...]

    @property
    def python(self) -> Path:
        """The interpreter."""
        return ROOT / self.name / "bin" / "python"

    def make(self) -> None:
        """Install what is not there yet; the stamp holds what was."""
        stamp, wanted = ROOT / self.name / "weft-stamp", repr(self.packages)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"setting up {self.name} (once)", file=sys.stderr)
        ROOT.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ROOT / self.name)], check=True)
        pip = [str(self.python), "-m", "pip", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *self.packages], check=True)
        stamp.write_text(wanted)


ENVIRONMENTS = (
    Environment("openai-3", "openai_sdk.py", ("openai==3.52.0",)),
    Environment("openai-2", "openai_sdk.py", ("openai==2.54.0",)),
    Environment("anthropic", "anthropic_sdk.py", ("anthropic==2.11.0",)),
    Environment("langchain-openai", "langchain_openai_sdk.py", ("langchain-openai==1.7.3",)),
    Environment(
        "llama-index",
        "llama_index_sdk.py",
        ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
    ),
    Environment("litellm", "litellm_sdk.py", ("litellm==1.100.5",)),
    Environment("instructor", "instructor_sdk.py", ("instructor==1.17.0",)),
    Environment("pydantic-ai", "pydantic_ai_sdk.py", ("pydantic-ai-slim[openai]==2.68.0",)),
)

if __name__ == "__main__":
    for environment in ENVIRONMENTS:
        environment.make()
