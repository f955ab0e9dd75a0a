"""The real clients' packages, each client in an environment of its own in `build/clients`, made once.

Versions are pinned: a release of somebody else's must not change what a test of ours says.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
ROOT = TREE / "build" / "clients"

# weft-vllm, which is installed like this alone.
COMPATIBLE = str(TREE / "compat" / "vllm")


@dataclass(frozen=True, slots=True)
class Environment:
    """Where `script`, a file beside this one, runs, and what pip installs there; npm, where it is no Python."""

    name: str
    script: str
    packages: tuple[str, ...]
    has_weft: bool = False  # what Weft needs is installed too, and Weft found in this tree
    is_node: bool = False
    post_install: str = ""  # a script of the package, which npm does not run by itself

    @property
    def variables(self) -> dict[str, str]:
        """What the script's process has to know."""
        return {"PYTHONPATH": str(TREE / "src") if self.has_weft else ""}

    @property
    def missing(self) -> str | None:
        """The program without which this cannot be made."""
        needed = ("node", "npm") if self.is_node else ()
        return next((name for name in needed if shutil.which(name) is None), None)

    def command(self) -> list[str]:
        """What runs the script. Node finds packages beside a script only: it gets a copy there."""
        script = Path(__file__).parent / self.script
        if not self.is_node:
            return [str(self.python), str(script)]
        return ["node", shutil.copy(script, ROOT / self.name)]

    @property
    def programs(self) -> Path:
        """Where the packages' commands are."""
        return ROOT / self.name / ("node_modules/.bin" if self.is_node else "bin")

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
        if self.is_node:
            self._install_node_packages()
        else:
            self._install()
        stamp.write_text(wanted)

    def _install(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ROOT / self.name)], check=True)
        packages = list(self.packages)
        if self.has_weft:
            project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
            packages += project["dependencies"]
        subprocess.run([*self.pip_install, *packages], check=True)
        if self.has_weft:
            subprocess.run([*self.pip_install, "--no-deps", "--editable", COMPATIBLE], check=True)

    @property
    def pip_install(self) -> list[str]:
        """What installs something there."""
        return [str(self.python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]

    def _install_node_packages(self) -> None:
        place = ROOT / self.name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / "package.json").write_text(json.dumps({"private": True}))
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--save-exact"]
        subprocess.run([*npm, *self.packages], cwd=place, check=True)
        if self.post_install:
            subprocess.run(["node", self.post_install], cwd=place, check=True)


ENVIRONMENTS = (
    Environment("openai-3", "openai_sdk.py", ("openai[realtime]==3.57.0",)),
    Environment("openai-2", "openai_sdk.py", ("openai[realtime]==2.54.0",)),
    Environment("anthropic", "anthropic_sdk.py", ("anthropic==2.14.0",)),
    Environment("open-responses", "open_responses.py", ("openresponses-types==2.4.0",)),
    Environment("cohere", "cohere_sdk.py", ("cohere==7.3.1",)),
    Environment("ollama", "ollama_sdk.py", ("ollama==0.6.3",)),
    Environment("langchain-openai", "langchain_openai_sdk.py", ("langchain-openai==1.7.4",)),
    Environment(
        "llama-index",
        "llama_index_sdk.py",
        ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
    ),
    Environment("litellm", "litellm_sdk.py", ("litellm==1.110.2",)),
    Environment("instructor", "instructor_sdk.py", ("instructor==1.17.0",)),
    Environment("pydantic-ai", "pydantic_ai_sdk.py", ("pydantic-ai-slim[openai]==2.68.0",)),
    Environment(
        "ai",
        "ai_sdk.mjs",
        (
            "ai@7.0.173",
            "@ai-sdk/openai@4.0.118",
            "@ai-sdk/openai-compatible@3.0.92",
            "zod@4.6.7",
        ),
        is_node=True,
    ),
    Environment(
        "weft-vllm",
        "vllm_programs.py",
        # With what pip would find after minutes.
        (
            "langchain-community==0.4.2",
            "langchain-core==1.8.3",
            "langchain-classic==1.0.8",
            "langsmith==0.15.1",
            "llama-index-core==0.14.25",
            "llama-index-llms-vllm==0.8.0",
        ),
        has_weft=True,
    ),
)

# Programs that are run as they are, without a script of ours.
AGENTS = (
    Environment(
        "claude-code",
        "",
        ("@anthropic-ai/claude-code@2.1.332",),
        is_node=True,
        post_install="node_modules/@anthropic-ai/claude-code/install.cjs",
    ),
    Environment("codex", "", ("@openai/codex@0.171.0",), is_node=True),
    Environment("aider", "", ("aider-chat==0.86.2",)),
)

if __name__ == "__main__":
    for environment in (*ENVIRONMENTS, *AGENTS):
        environment.make()
