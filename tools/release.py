"""`make release`: an sdist and wheels in dist/release, each tried in a clean environment, with checksums and an SBOM.

    python -m tools.release [--python PYTHON ...] [--try PYTHON ...]

A wheel is built with each `--python` (this one by default): 3.11 has a wheel of its own, any later one makes the wheel
of the stable ABI for 3.12 and later. `auditwheel` says which Linux systems a wheel runs on, and names it so. Each wheel
answers a prompt in a fresh environment of every `--try` that takes it, in an empty folder and without a compiler on
the PATH. The wheels of `packaging/` lie beside them, and tests/test_distributions.py runs these. A tag `vX.Y.Z`
on the commit must be the version of the package.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "dist" / "release"
PROGRAM = """
import sys, weft
with weft.LLM("embedded:tiny") as llm:
    params = weft.SamplingParams(temperature=0, max_tokens=8)
    text = llm.generate("The capital of France is", params)[0].outputs[0].text
print(f"Python {sys.version.split()[0]}:", repr(text))
sys.exit(not text)
"""


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """The output of a command; its failure ends the release, with what it wrote."""
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def version() -> str:
    """The version of the package, which the tag of the commit repeats, if there is one."""
    source = (ROOT / "src/weft/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"', source, re.MULTILINE)
    assert found is not None
    tags = [t for t in run("git", "tag", "--points-at", "HEAD").split() if t.startswith("v")]
    if tags and f"v{found[1]}" not in tags:
        sys.exit(f"the tag {tags[0]} is not the version {found[1]} of src/weft/__init__.py")
    return found[1]


def build(python: str, folder: Path) -> Path:
    """A wheel for this Python, named after the systems that it runs on."""
    # No isolated build twice: the environment of a build comes from pyproject.toml.
    run(python, "-m", "venv", folder / "venv")
    pip = (folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "-C", "wheel.py-api=cp312", "--wheel-dir", folder, ".")
    (wheel,) = folder.glob("*.whl")
    if sys.platform == "linux":
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder / "named", wheel)
        (wheel,) = (folder / "named").glob("*.whl")
    return Path(shutil.copy(wheel, OUT))


def takes(python: str, wheel: Path) -> bool:
    """Whether this Python installs such a wheel."""
    minor = int(run(python, "-c", "import sys; print(sys.version_info.minor)"))
    return minor >= 12 if "-abi3-" in wheel.name else f"-cp3{minor}-" in wheel.name


def try_out(python: str, wheel: Path) -> str:
    """What the wheel answers, installed where there is no compiler and no source tree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "venv")
        binaries = folder / "venv/bin"
        env = {"PATH": str(binaries), "HOME": name}
        env |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        run(binaries / "python", "-m", "pip", "install", wheel, cwd=folder, env=env)
        answer = run(binaries / "python", "-c", PROGRAM, cwd=folder, env=env)
        sbom = OUT / f"{wheel.stem}.cdx.json"
        run(
            sys.executable,
            "-m",
            "cyclonedx_py",
            "environment",
            "--output-file",
            sbom,
            binaries / "python",
        )
        return answer.strip()


def changes(release: str) -> str:
    """The section of the changelog for this release, or what is unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    named = [s for s in sections if s.startswith(f"## {release}")]
    return (named or sections)[0].strip() + "\n"


def checksums(folder: Path) -> str:
    """One line for each file, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )


def main(arguments: Sequence[str]) -> None:
    """Build, try out, and write down what was made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", help="Python to build a wheel with; repeatable"
    )
    parser.add_argument(
        "--try", action="append", dest="tried", help="Python to try wheels with; repeatable"
    )
    options = parser.parse_args(arguments)
    pythons = options.python or [sys.executable]
    release = version()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", OUT)
    for python in pythons:
        with tempfile.TemporaryDirectory() as name:
            wheel = build(python, Path(name))
        print(f"built {wheel.name}, {wheel.stat().st_size:,} bytes", flush=True)
        tried = [one for one in options.tried or pythons if takes(one, wheel)]
        if not tried:
            sys.exit(f"no --try takes {wheel.name}")
        for one in tried:
            print(f"  {try_out(one, wheel)}", flush=True)
    for part in sorted((ROOT / "packaging").iterdir()):
        run(sys.executable, "-m", "build", "--wheel", "--outdir", OUT, part)
    (OUT / "CHANGES.md").write_text(changes(release), encoding="utf-8")
    (OUT / "SHA256SUMS").write_text(checksums(OUT), encoding="utf-8")
    print(f"{release}: {OUT.relative_to(ROOT)} has {len(list(OUT.iterdir()))} files")


if __name__ == "__main__":
    main(sys.argv[1:])
