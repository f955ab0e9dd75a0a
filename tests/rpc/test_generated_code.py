import subprocess
import sys
from pathlib import Path

import weft.pb
from weft.pb import common_pb2, vllm_control_pb2, vllm_engine_pb2, vllm_inference_pb2
from weft.rpc.methods import CONTROL_METHODS, INFERENCE_METHODS, METHODS

ROOT = Path(__file__).parents[2]
PACKAGE = Path(weft.pb.__file__).parent


def test_generated_code_is_up_to_date(tmp_path: Path):
    """What is committed is what `make proto` makes of proto/, byte for byte."""
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", tmp_path], check=True)

    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in PACKAGE.glob("*_pb2*")}
    assert made == kept


def test_generated_code_imports_by_its_full_name():
    """A sibling import would need `weft/pb` on the path, and clash with others' `common_pb2`."""
    sources = [path.read_text() for path in PACKAGE.glob("*_pb2*")]

    assert not any(line.startswith("import common") for s in sources for line in s.splitlines())
    assert vllm_engine_pb2.GenerateRequest.__module__ == "weft.pb.vllm_engine_pb2"


def test_packages_keep_the_names_that_reflection_shows():
    """Other implementations of the protocol use these."""
    assert vllm_engine_pb2.DESCRIPTOR.package == "vllm.grpc.engine"
    assert common_pb2.DESCRIPTOR.package == "smg.grpc.common"
    assert {vllm_inference_pb2.DESCRIPTOR.package, vllm_control_pb2.DESCRIPTOR.package} == {"vllm"}


def test_all_twelve_calls_are_there():
    """With the right shape each."""
    assert {name: method.is_streaming for name, method in METHODS.items()} == {
        "Generate": True,
        "Embed": False,
        "HealthCheck": False,
        "FlushCache": False,
        "StartProfile": False,
        "StopProfile": False,
        "Abort": False,
        "GetModelInfo": False,
        "GetServerInfo": False,
        "GetLoads": False,
        "GetTokenizer": True,
        "SubscribeKvEvents": True,
    }


def test_all_calls_of_vllms_own_services_are_there():
    """Two of inference, and 21 of control, of which none is a stream."""
    assert {name: method.is_streaming for name, method in INFERENCE_METHODS.items()} == {
        "Generate": False,
        "GenerateStream": True,
    }
    assert len(CONTROL_METHODS) == 21
    assert not any(method.is_streaming for method in CONTROL_METHODS.values())
