"""Command lines that cannot work: each ends before anything is started, in one line that names what is wrong."""

import shlex
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.running import SMALL, here

TINY = Path(str(files("weft.model.embedded"))) / "tiny"
DP = "serve M --max-model-len 16384 --num-gpu-blocks-override 2048 --num-threads 2"
HEAD = f"{DP} -dp 2 -dpl 1 --data-parallel-secret-file /s"
VLLM = f"serve {TINY} --engine vllm"
REMOTE = "serve --remote grpc://127.0.0.1:1"
# M stands for a small model.
REFUSED = {
    "sreve": "sreve",
    "serve one two": "'one': no such directory",
    "chat one two": "two",
    "serve --max-model-lenn 3": "Did you mean --max-model-len?",
    "serve M --no-such-flag": "--no-such-flag",
    "serve --max-model-len many": '"many" is not a size',
    "serve --max-num-seqs 1.5": "--max-num-seqs",
    "serve --dtype float8": '"float32"',
    "serve --scheduling-policy lifo": '"priority"',
    "serve --shutdown-timeout -1": "--shutdown-timeout must be 0 or more",
    "serve --shutdown-timeout nan": "--shutdown-timeout must be 0 or more",
    "serve --grpc-port 65536": "--grpc-port must be between 0 and 65535",
    "serve --host no.such.host.invalid": "--host no.such.host.invalid",
    "serve --api-key ' '": "--api-key must not be empty",
    "serve M --control-api-key ' '": "--control-api-key must not be empty",
    "serve M --api-key-file /none": "--api-key-file /none: the file does not exist",
    "serve M --salt-by-key": "--salt-by-key needs --api-key or --api-key-file",
    "serve --remote grpc://a:1 --api-key k --salt-by-key": "--salt-by-key and --remote exclude",
    "serve /no/such/directory": "/no/such/directory",
    "serve --enable-log-requests --max-log-len -1": "--max-log-len must be at least 0, not -1",
    "serve model.gguf": "'model.gguf': the file does not",
    "complete a b": 'unexpected argument "b"; put several words in quotes',
    "complete a --address ftp://x:1": "--address must be HOST:PORT or grpc://HOST:PORT",
    "epp --pol-name x": "--pol-name. Did you mean --pool-name?",
    "epp --nope": "error: Unknown option: --nope. weft epp --help lists all flags.",
    # -- of HTTP
    "serve M --no-http --no-grpc": "nothing to serve",
    "serve M --resume-secret-file /none": "--resume-secret-file /none: No such file",
    "serve M --resume-secret-file /none --no-http": "--resume-secret-file and --no-http exclude",
    f"{VLLM} --resume-secret-file /none": "--resume-secret-file needs an engine of Weft",
    "serve one=M two=M --resume-secret-file /none": "--resume-secret-file and several models exclude",
    "serve M --port 65536": "--port must be between 0 and 65535",
    "serve M --ssl-certfile x.pem": "both --ssl-certfile and --ssl-keyfile",
    "serve M --ssl-certfile /none --ssl-keyfile /none": "--ssl-certfile: cannot read /none",
    "serve M --allowed-origins a.example": "--allowed-origins",
    "serve M --max-n 0": "--max-n must be at least 1",
    "serve M --show-hidden-metrics-for-version 3.0": (
        'error: --show-hidden-metrics-for-version "3.0" shows no older name'
    ),
    # -- of several processes and machines
    "serve M --api-server-count 0": "must be from 1 to 64",
    "serve M --uds /tmp/weft.sock --api-server-count 2": "--api-server-count 2 exclude each other",
    "serve M --uds /tmp/weft.sock --port 8001": "--uds and --port 8001 exclude each other",
    "serve M --uds /tmp/weft.sock --no-http": "--uds and --no-http exclude each other",
    "serve M --api-server-count 2 --engine vllm": "--engine vllm exclude each other",
    "serve M --api-server-count 2 --remote grpc://h:1": "--remote exclude each other",
    "serve --remote grpc://h:1 --data-parallel-rank 0": (
        "--data-parallel-rank and --remote exclude each other"
    ),
    f"{DP} --data-parallel-rank 1": "--data-parallel-rank must be from 0 to 0",
    f"{HEAD} --api-server-count 2": "--api-server-count 2 cannot be combined with",
    # -- of engines elsewhere
    "serve embedded:tiny --remote grpc://127.0.0.1:1": "MODEL",
    "serve --remote http://127.0.0.1:1": "must be grpc://HOST:PORT",
    "serve --remote grpc://127.0.0.1": "must be grpc://HOST:PORT",
    "serve --remote grpcs://127.0.0.1:1": "--remote-tls-ca",
    "serve --remote grpc://a:1,grpc://a:1": "twice",
    f"{REMOTE} --max-model-len 64": "--max-model-len",
    f"{REMOTE} --grpc-port 6000": "--grpc-port",
    f"{REMOTE} --no-http": "nothing to serve",
    f"{REMOTE} --remote-api-key ''": "must not be empty",
    "serve --remote-api-key k": "needs --remote",
    # -- of vLLM's engine
    "serve --engine vllm": "needs a MODEL",
    f"{VLLM} --num-threads 2": "--num-threads has no effect with",
    f"{VLLM} --engine-args [": "--engine-args: not valid JSON",
    f"""{VLLM} --engine-args '{{"model": "x"}}'""": "this server sets model itself",
    f"serve {TINY} --engine-args {{}}": "--engine-args needs --engine vllm",
    "serve --engine vllm --remote grpc://a:1": "--engine vllm and --remote",
    "serve no/such/dir --engine vllm": "no such directory",
    # -- of the picker
    "epp --config-file=/no/such.yaml": "/no/such.yaml: cannot be read",
    "epp '--config-text=kind: X'": "missing required field `apiVersion`",
    "epp --endpoint=nonsense": "must begin with HOST:PORT",
    "epp --grpc-port=70000": "--grpc-port must be between 0 and 65535",
    "epp --drain-timeout=soon": "must be a duration",
    "epp --drain-timeout=-1s": "--drain-timeout must be 0 or more",
    "epp --cert-path=/no/such": "--cert-path: cannot read /no/such/tls.crt",
    "epp --max-body-bytes=0": "--max-body-bytes must be between 1",
    "epp --metrics-endpoint-auth": "needs --metrics-token-file, or a pool in Kubernetes",
    "epp --ha-enable-leader-election": "--ha-enable-leader-election needs --pool-name",
    "epp --zap-encoder=xml": "--zap-encoder must be json or console",
    # -- of all on one machine
    "up M --workers=0": "--workers must be between 1 and 256",
    "up --prefill=1": "--prefill and --decode need each other",
    "up --prefill=1 --decode=-1": "--decode must be between 1 and 256",
    "up --buffered-body-bytes=0": "--buffered-body-bytes must be between 1 and 67108864",
    "up --envoy=/no/such": "--envoy /no/such: not a program",
    "up --port=99999": "--port must be between 1 and 65535",
}
# What is known with the model alone, while its engine's process starts.
REFUSED_LATER = {
    "serve M --max-num-seqs 0": "--max-num-seqs must be between 1 and",
    "serve M --block-size 0": "--block-size must be between 1 and",
    "serve M --num-gpu-blocks-override 0": "--num-gpu-blocks-override must be between 1 and",
    "serve M --num-gpu-blocks-override 1000000000": "free",
    "serve M --max-model-len 1000000000": "--max-model-len 1000000000 is beyond",
    "serve M --grpc-tls-cert nothing.pem": "--grpc-tls-key",
    "serve M --chat-template /none": "--chat-template: cannot read /none",
    "serve M --tool-call-parser nothing": "--tool-call-parser",
    "serve M --reasoning-parser nothing": "--reasoning-parser",
    f"{DP} -dp 0": "--data-parallel-size must be between 1 and 64",
    f"{DP} -dp 2 -dpn 1 --enable-elastic-ep": "--enable-elastic-ep cannot be combined with ranks on other",
    f"""{HEAD} --weight-transfer-config '{{"backend": "shared_memory"}}'""": (
        "--weight-transfer-config cannot be combined with"
    ),
    f"""{HEAD} --headless --kv-events-config '{{"enable_kv_cache_events": true}}'""": (
        "--kv-events-config cannot be combined with"
    ),
    f"{HEAD} --headless --engine-restarts 1": "--engine-restarts does not go with --headless",
    f"{DP} -dp 2 --headless -dpr 1 --data-parallel-secret-file /none": (
        "--data-parallel-secret-file /none: No such file"
    ),
}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        *REFUSED.items(),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in REFUSED_LATER.items()),
    ],
)
def test_what_cannot_work_is_refused_by_name(line: str, words: str):
    """One line that says what was wrong and what is allowed, and status 2; no traceback, nothing for a pipe."""
    argv = [f"{SMALL}&max_len=16384" if word == "M" else word for word in shlex.split(line)]
    ports = {"WEFT_PORT": "0", "WEFT_GRPC_PORT": "0"} if argv[0] == "serve" else {}
    if "--remote" in argv:
        del ports["WEFT_GRPC_PORT"]
    ended = here(*argv, **ports)
    assert (ended.returncode, ended.stdout) == (2, "")
    *logged, said = ended.stderr.splitlines()
    assert not logged or argv[0] == "epp" or "--headless" in argv  # these log first what they begin
    assert said.startswith("error: ")
    assert words in said
