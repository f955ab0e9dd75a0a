"""The package as users get it: what is in the wheel, what it imports, what it needs."""

import ast
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import nanobind
import pytest

from tests.cli.running import clean_environment
from tests.tools.test_set_up import core

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = {".py": 5_900_000, ".safetensors": 7_800_000, ".so": 3_800_000}  # others: 300,000
EMBEDDED = ROOT / "src" / "weft" / "model" / "embedded"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with what is installed, around the module that the set-up compiled: compiling it anew takes minutes."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    settings = ["--config-settings", "wheel.cmake=false", "--wheel-dir", str(out)]
    subprocess.run([*command, *settings, str(ROOT)], check=True, capture_output=True, timeout=600)
    (built,) = out.glob("weft_serve-*.whl")
    with zipfile.ZipFile(built, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.write(core(), f"weft/compute/native/{core().name}")
    return built


@pytest.mark.slow
def test_a_wheel_gets_its_module_from_cmake(tmp_path: Path):
    """In the package, from the sources; `make release` compiles whole wheels, and tries them."""
    binaries = Path(sys.executable).parent
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": binaries / "ninja",
        "Python_EXECUTABLE": sys.executable,
        "SKBUILD_STATE": "wheel",
        "nanobind_DIR": nanobind.cmake_dir(),
    }
    words = [f"-D{name}={value}" for name, value in settings.items()]
    command = [binaries / "cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *words]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (line,) = re.findall(
        r"file\(INSTALL .*MODULE FILES.*", (tmp_path / "cmake_install.cmake").read_text()
    )
    assert "/weft/compute/native" in line
    assert "/_core." in line


@pytest.mark.slow
def test_the_wheel_holds_the_model_the_types_and_the_native_module(wheel: Path):
    """Whatever is in the embedded models' directories is there too; tests and sources are not."""
    names = set(zipfile.ZipFile(wheel).namelist())
    embedded = {
        f"weft/model/embedded/{toy}/{path.name}"
        for toy in ("tiny", "tiny-vision", "tiny-whisper")
        for path in (EMBEDDED / toy).iterdir()
    }
    assert embedded | {"weft/py.typed", "weft/cli/help.json"} <= names
    assert (
        len([name for name in names if "compute/native/_core" in name and ".pyi" not in name]) == 1
    )
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"weft", "weft_serve"}
    assert wheel.stat().st_size < 10_300_000


@pytest.mark.slow
def test_what_the_wheel_unpacks_to_is_small(wheel: Path):
    """By kind; and the native module has no symbols, which would be most of it."""
    archive = zipfile.ZipFile(wheel)
    sizes: Counter[str] = Counter()
    for entry in archive.infolist():
        sizes[Path(entry.filename).suffix] += entry.file_size
    assert {
        kind: size for kind, size in sizes.items() if size > MOST_BYTES.get(kind, 300_000)
    } == {}
    (module,) = (name for name in archive.namelist() if name.endswith(".so"))
    assert b".symtab" not in archive.read(module)


@pytest.mark.slow
def test_the_wheel_holds_all_instruction_paths(wheel: Path):
    """Those of the machine that compiled it would be slow, or nothing at all, on another."""
    archive = zipfile.ZipFile(wheel)
    (module,) = (name for name in archive.namelist() if name.endswith(".so"))
    every = {path.stem for path in (ROOT / "cpp" / "kernels").glob("*.cpp")} - {"select"}
    of_arm = {path for path in every if path.startswith("neon")}
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    paths = every - of_arm if is_x86 else of_arm | {"portable"}
    code = archive.read(module)
    assert [path for path in sorted(paths) if f"{path}\0".encode() not in code] == []


@pytest.mark.slow
def test_the_installed_wheel_serves_its_model(wheel: Path, tmp_path: Path):
    """From a directory of its own, not from the source tree."""
    target = str(tmp_path / "site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    program = (
        "import weft\n"
        "with weft.LLM() as llm:\n"
        "    print(weft.__file__, len(llm.generate('Hello')[0].outputs[0].token_ids))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=clean_environment(PYTHONPATH=target),
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout.split()  # fmt: skip
    assert shown[0].startswith(target)
    assert int(shown[1]) > 0


def test_nothing_that_serves_imports_torch():
    """Server, engine and clients, in a process of their own."""
    program = (
        "import sys, weft.cli.serving.serve, weft.cli.serving.loading, weft.cli.chat.chat, weft.cli.chat.complete\n"
        "import weft.engine.process, weft.engine.process_main\n"
        "import weft.engine.llm.offline\n"
        "print(sorted({'torch', 'transformers', 'pydantic'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


def test_a_server_imports_nothing_of_the_engine_and_no_library_for_rare_requests():
    """The engine is a process of its own; WebSockets and downloads of media import their libraries when they come."""
    program = (
        "import sys, weft.cli.serving.serve, weft.cli.serving.finding, weft.cli.serving.loading\n"
        "late = {'llguidance', 'httpx2', 'wsproto', 'weft.engine.loop', 'weft.compute.reference.runner'}\n"
        "late |= {'weft.engine.scheduling.scheduler', 'weft.engine.clients.local_client'}\n"
        "print(sorted(late & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


def test_no_dependency_is_pinned_to_one_version():
    """A range lets the package live beside others; only a test's measure may be exact."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [need for need in project["dependencies"] if "==" in need or "<" not in need] == []
    assert not any(need.startswith("torch") for need in project["dependencies"])


def imported_distributions() -> set[str]:
    """What must be installed for every module of the package to import."""
    names = set()
    for path in (ROOT / "src" / "weft").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    # Names that many distributions share; of these the package imports one each.
    shared = {
        "google": ["protobuf"],
        "lightkube": ["lightkube"],
        "opentelemetry": ["opentelemetry-sdk"],
    }
    providers = packages_distributions() | shared
    foreign = names - set(sys.stdlib_module_names) - {"weft"}
    return {providers[name][0].lower().replace("_", "-") for name in foreign}


def test_what_is_imported_is_what_is_declared():
    """Neither a dependency that came along by luck, nor one that nobody uses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # That of `up` is a program; exporters of traces are imported by the protocol's name.
    otel = [need for need in extras["otel"] if "exporter" not in need]
    imported = (extras[name] for name in ("epp", "gpu", "kubernetes", "mcp"))
    # torch brings the Triton that fits it.
    needs = [*project["dependencies"], *(n for extra in imported for n in extra), *otel, "triton"]
    assert imported_distributions() == {re.split(r"[><=]", need)[0] for need in needs}


def test_every_dependency_has_its_reason_written_down():
    """docs/decisions/0006 says why each is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "decisions" / "0006-what-we-depend-on.md").read_text()
    families = {
        re.split(r"[><=]|-(?:health|reflection)", need)[0] for need in project["dependencies"]
    }
    assert [name for name in families if name not in page] == []


def test_importing_the_package_loads_nothing_else():
    """`import weft` is free; what it offers is loaded when asked for."""
    program = (
        "import sys, weft; print([n for n in sys.modules if n.startswith('weft.')], dir(weft))"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown.startswith("[]")
    assert "'LLM'" in shown
