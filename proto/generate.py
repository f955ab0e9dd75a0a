"""Generate `weft.pb` from the .proto files beside this script: `python proto/generate.py [OUT]`.

protoc writes sibling imports and demands runtimes as new as itself; both are put right here, so that
the package needs only the versions in pyproject.toml and a newer protoc changes nothing.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "weft" / "pb"
NAMES = (
    "common", "vllm_engine", "vllm_inference", "vllm_control",
    "sglang_scheduler", "trtllm_service", "ext_proc", "ext_proc_core", "ext_proc_type",
)  # fmt: skip
# Messages only: an empty file of stubs would be noise.
NO_SERVICE = ("common", "ext_proc_core", "ext_proc_type")
OLDEST_PROTOBUF = (7, 35, 1)
OLDEST_GRPC = "1.85.0"

_SIBLING_IMPORT = re.compile(r"^import (\w+_pb2)( as \w+)?$", re.MULTILINE)
_RUNTIME_CHECK = re.compile(
    r"(_runtime_version\.Domain\.PUBLIC,\s*)\d+,(\s*)\d+,(\s*)\d+,(\s*)'[^']*'"
)


def run_protoc(out: Path) -> None:
    """Write the raw generated files to `out`."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{HERE}"]
    command += [f"--python_out={out}", f"--grpc_python_out={out}", f"--pyi_out={out}"]
    command += [f"{name}.proto" for name in NAMES]
    subprocess.run(command, check=True, cwd=HERE)


def rewrite(source: str) -> str:
    """Make imports absolute and lower the runtime checks to what the code really needs."""
    major, minor, patch = OLDEST_PROTOBUF
    version = f"{major}.{minor}.{patch}"
    source = re.sub(r"(DESCRIPTOR, ')(\w+_pb2)'", r"\1weft.pb.\2'", source)
    source = _SIBLING_IMPORT.sub(r"from weft.pb import \1\2", source)
    source = _RUNTIME_CHECK.sub(rf"\g<1>{major},\g<2>{minor},\g<3>{patch},\g<4>''", source)
    source = re.sub(r"(# Protobuf Python Version: ).*", rf"\g<1>{version}", source)
    return re.sub(r"(GRPC_GENERATED_VERSION = )'[^']*'", rf"\g<1>'{OLDEST_GRPC}'", source)


def main(out: Path) -> None:
    """Generate into `out`."""
    with tempfile.TemporaryDirectory() as scratch:
        run_protoc(Path(scratch))
        for path in sorted(Path(scratch).iterdir()):
            if path.name in {f"{name}_pb2_grpc.py" for name in NO_SERVICE}:
                continue
            (out / path.name).write_text(rewrite(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
