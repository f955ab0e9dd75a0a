"""`weft epp` as a process: addresses, pages, reasons, signals, and starts that must fail."""

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment, here, started, weft
from weft.cli.picker.options import EppOptions
from weft.core.errors import ConfigError
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub
from weft.web.page.assets import POLICY

CHAT = b'{"model":"m","messages":[{"role":"user","content":"a secret"}]}'


class Epp:
    """A running picker."""

    def __init__(self, process: "subprocess.Popen[str]", lines: list[str]) -> None:
        self.process = process
        words = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  ")}
        self.address, self.health = words["ext_proc"], words["health"]
        self.metrics_port = words["metrics"].removesuffix("/metrics").rsplit(":", 1)[1]

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """A page of the metrics port."""
        connection = HTTPConnection("127.0.0.1", int(self.metrics_port), timeout=PATIENCE_S)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def route(self, request_id: str) -> str:
        """Where a chat goes."""
        opening, body = ProcessingRequest(), ProcessingRequest()
        for key, value in {
            ":method": "POST", ":path": "/v1/chat/completions", "x-request-id": request_id,
        }.items():  # fmt: skip
            opening.request_headers.headers.headers.add(key=key, raw_value=value.encode())
        body.request_body.body, body.request_body.end_of_stream = CHAT, True
        with grpc.insecure_channel(self.address) as channel:
            answers = list(ExternalProcessorStub(channel).Process(iter((opening, body))))
        mutation = answers[0].request_headers.response.header_mutation
        return next(
            option.header.raw_value.decode()
            for option in mutation.set_headers
            if option.header.key == "x-gateway-destination-endpoint"
        )


@contextmanager
def epp(*argv: str) -> Iterator[Epp]:
    """`weft epp ARGV` on free ports."""
    ports = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
    with started("epp", *ports, *argv, last="  metrics") as (process, lines):
        yield Epp(process, lines)


@pytest.fixture(scope="module")
def picker() -> Iterator[Epp]:
    """Of one endpoint, at which nobody listens; for tests that only look at it."""
    with epp("--endpoint=127.0.0.1:1,role=decode") as picker:
        yield picker


@pytest.fixture(scope="module")
def bare() -> Iterator[Epp]:
    """Without endpoints, likewise."""
    with epp() as picker:
        yield picker


def health(address: str, service: str) -> int:
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        return check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S).status


@pytest.mark.parametrize(
    "service", ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"]
)
def test_health_is_told_on_both_ports(picker: Epp, service: str):
    """Gateways ask the first one, supervisors the other."""
    serving = health_pb2.HealthCheckResponse.SERVING
    assert health(picker.address, service) == health(picker.health, service) == serving


def test_a_picker_without_endpoints_is_live_but_not_ready(bare: Epp):
    """It answers, and says 503."""
    assert bare.get("/readyz")[0] == 503
    assert bare.get("/livez")[0] == 200
    assert health(bare.health, "readiness") == health_pb2.HealthCheckResponse.NOT_SERVING


def test_reasons_can_be_asked_for():
    """As a page, and as a command; the prompt is nowhere."""
    with epp("--endpoint=127.0.0.1:1", "--endpoint=127.0.0.1:2") as picker:
        destination = picker.route("r-1")
        status, page = picker.get("/debug/decisions?request_id=r-1")
        assert (status, json.loads(page)["endpoints"]) == (200, [destination])
        shown = here("epp", "explain", "r-1", "--metrics-port", picker.metrics_port)
        assert shown.returncode == 0
        assert shown.stdout.startswith(f"request r-1: {destination}\n")
        assert "queue-scorer" in shown.stdout
        assert "second 127.0.0.1" in shown.stdout
        for path in ("/debug/decisions", "/debug/plugins/state", "/metrics"):
            status, page = picker.get(path)
            assert status == 200
            assert b"secret" not in page


def test_an_unknown_request_has_no_reasons(bare: Epp):
    """One line, and status 1."""
    shown = here("epp", "explain", "nobody", "--metrics-port", bare.metrics_port)
    assert shown.returncode == 1
    assert shown.stderr == "error: no decision is stored for request nobody\n"


def test_explaining_needs_a_picker():
    """The line says which flags to look at."""
    shown = here("epp", "explain", "r", "--metrics-port", "1")
    assert shown.returncode == 1
    assert "give its address with --host and --metrics-port" in shown.stderr


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200"),
        (b"GET /nothing HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"nonsense", b"400"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1", b"431"),
    ],
)
def test_the_metrics_port_answers_anything(bare: Epp, request_line: bytes, status: bytes):
    """With the status that HTTP has for it, and then closes."""
    address = ("127.0.0.1", int(bare.metrics_port))
    with socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(request_line + b"\r\nhost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 " + status


def test_pages_are_not_for_strange_names():
    """A web page may have its own name looked up as this machine's, and would read every decision."""
    with epp("--allowed-hosts=metrics.example") as picker:
        paths = ("/metrics", "/debug/decisions", "/debug/plugins/state", "/nothing")
        foreign = [picker.get(path, host="evil.example:9090") for path in paths]
        assert [status for status, _ in foreign] == [403] * 4
        assert b"--allowed-hosts" in foreign[0][1]
        assert picker.get("/metrics", host="metrics.example")[0] == 200
        assert picker.get("/readyz", host="probe")[0] in (200, 503)


def test_a_browser_gets_a_page_that_wants_no_token(tmp_path: Path):
    """Its files are the same for everybody; they come under the policy, and by names that are allowed."""
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    with epp(f"--metrics-token-file={file}") as picker:
        for path in ("/", "/page/routing.js", "/page/style.css"):
            connection = HTTPConnection("127.0.0.1", int(picker.metrics_port), timeout=PATIENCE_S)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, answer.headers["content-security-policy"]) == (200, POLICY)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert picker.get(path, host="evil.example")[0] == 403
        assert picker.get("/page/app.js", authorization="bearer s3cret")[0] == 404
        status, state = picker.get("/debug/plugins/state", authorization="bearer s3cret")
        assert (status, json.loads(state)["rows"]) == (200, [])


def test_the_state_has_the_load_of_each_endpoint(picker: Epp):
    """As it was reported, and how long ago: never, of one that nobody listens at."""
    [row] = json.loads(picker.get("/debug/plugins/state")[1])["rows"]
    assert (row["address"], row["labels"]) == ("127.0.0.1:1", {"role": "decode"})
    assert row["load"] == {"num_running": 0, "num_waiting": 0, "kv_usage": 0.0}
    assert row["load_age_s"] is None


def test_pages_can_want_a_token(tmp_path: Path):
    """All but those of health; the command that reads them can bring it."""
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    with epp("--endpoint=127.0.0.1:1", f"--metrics-token-file={file}") as picker:
        picker.route("r-1")
        paths = ("/metrics", "/debug/decisions", "/nothing", "/livez", "/readyz")
        assert [picker.get(path)[0] for path in paths] == [401, 401, 401, 200, 200]
        assert picker.get("/metrics", authorization="Bearer wrong")[0] == 401
        assert picker.get("/metrics", authorization="bearer s3cret")[0] == 200
        where = ("--metrics-port", picker.metrics_port)
        shown = here("epp", "explain", "r-1", *where)
        assert (shown.returncode, "--metrics-token-file" in shown.stderr) == (2, True)
        shown = here("epp", "explain", "r-1", *where, f"--metrics-token-file={file}")
        assert shown.stdout.startswith("request r-1: ")


def test_flags_that_switch_off_what_is_not_there_are_taken():
    """Deployments of the reference carry them."""
    off = ("--tracing=false", "--enable-pprof=false", "--metrics-endpoint-auth=false")
    with epp(*off) as picker:
        assert picker.get("/livez")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(number: signal.Signals):
    """After a moment in which gateways can notice."""
    with epp("--drain-timeout=5s") as picker:
        picker.process.send_signal(number)
        picker.process.communicate(timeout=PATIENCE_S)
        assert picker.process.returncode == 0


def test_a_second_signal_does_not_wait():
    """Somebody who asks twice is in a hurry."""
    with epp("--drain-timeout=60s") as picker:
        with grpc.insecure_channel(picker.address) as channel:
            hold = threading.Event()
            opening = ProcessingRequest()
            opening.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/completions")

            def messages():
                yield opening
                hold.wait(PATIENCE_S)

            grpc.channel_ready_future(channel).result(PATIENCE_S)
            answers = ExternalProcessorStub(channel).Process(messages())
            # Sent after the stream on the same connection: once it is answered, the stream is open.
            check = health_pb2_grpc.HealthStub(channel).Check
            check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            picker.process.send_signal(signal.SIGTERM)
            for line in picker.process.stderr or ():
                if "open requests get 60 s" in line:
                    break
            picker.process.send_signal(signal.SIGTERM)
            assert next(answers).immediate_response.status.code == 503
            hold.set()
        picker.process.communicate(timeout=PATIENCE_S)
        assert picker.process.returncode == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"enable_pprof": True}, "--enable-pprof is refused"),
        ({"refresh_prometheus_metrics_interval": "5s"}, "-interval is refused: gauges"),
        ({"tls_cipher_suites": "A"}, "--tls-cipher-suites is refused: OpenSSL chooses"),
        ({"tls_min_version": "VersionTLS13"}, "--tls-min-version VersionTLS13 is refused"),
        ({"metrics_cert_dir": "/c"}, "--metrics-cert-dir is refused: the metrics port"),
        ({"metrics_client_ca_file": "/c"}, "--metrics-client-ca-file is refused"),
        ({"total_queued_requests_metric": "a"}, "--total-queued-requests-metric is refused: name"),
        ({"feature_gates": "a=true"}, "--feature-gates is refused: set featureGates"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(setting: dict, words: str):
    """Each with its reason."""
    with pytest.raises(ConfigError, match=words):
        EppOptions(**setting).refuse_what_is_not_offered()


def test_flags_that_every_chart_passes_are_taken():
    """Mapped where there is something to map, and otherwise named in the log."""
    given = EppOptions(zap_encoder="json", zap_devel=False, health_checking=True, v=2)
    given.refuse_what_is_not_offered()
    assert list(given.without_effect()) == ["--zap-devel", "--health-checking"]
    assert given.wants_json()
    assert not given.is_debugging()


@pytest.mark.parametrize(
    ("setting", "is_debugging"),
    [({"v": 4}, True), ({"v": 3}, False), ({"zap_log_level": "debug"}, True),
     ({"zap_log_level": "5"}, True), ({"zap_log_level": "1"}, False), ({}, False)],
)  # fmt: skip
def test_verbosity_of_the_reference_turns_on_the_debug_log(setting: dict, is_debugging: bool):
    """From 4 on, which is what the reference calls debug."""
    assert EppOptions(**setting).is_debugging() is is_debugging


def test_a_log_level_that_the_reference_does_not_have_is_refused():
    """With those it has."""
    with pytest.raises(ConfigError, match="--zap-log-level must be debug, info"):
        EppOptions(zap_log_level="loud").is_debugging()


@pytest.mark.parametrize("content", ["", "two words", "\x00"])
def test_a_token_that_no_header_could_carry_is_refused(tmp_path: Path, content: str):
    """As is a file that is not there."""
    (tmp_path / "token").write_text(content)
    for name in ("token", "absent"):
        with pytest.raises(ConfigError, match="--metrics-token-file"):
            EppOptions(metrics_token_file=tmp_path / name).metrics_token()


def test_a_port_in_use_is_refused():
    """Two pickers on one port would share its connections at random."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = weft("epp", f"--grpc-port={port}", "--grpc-health-port=0", "--metrics-port=0")
    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def make_certificate(directory: Path) -> bytes:
    """A pair of files for localhost; returns the certificate."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout",
         str(directory / "tls.key"), "-out", str(directory / "tls.crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    return (directory / "tls.crt").read_bytes()


def is_live(channel: grpc.Channel, service: str = "liveness") -> bool:
    """Whether health says so."""
    with channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        asked = health_pb2.HealthCheckRequest(service=service)
        return check(asked, timeout=PATIENCE_S).status == health_pb2.HealthCheckResponse.SERVING


def secure(address: str, trusted: bytes) -> grpc.Channel:
    """A channel to this port that takes only that certificate."""
    port = address.rsplit(":", 1)[1]
    return grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(trusted))


def test_it_serves_tls_with_a_certificate(tmp_path: Path):
    """And plaintext without: gateways differ in what they insist on."""
    trusted = make_certificate(tmp_path)
    with epp(f"--cert-path={tmp_path}") as picker:
        assert is_live(secure(picker.address, trusted))


def test_probes_need_no_tls(tmp_path: Path):
    """Kubernetes speaks none to gRPC probes, and its charts have names of their own for them."""
    make_certificate(tmp_path)
    with epp(f"--cert-path={tmp_path}") as picker:
        assert is_live(grpc.insecure_channel(picker.health))
        assert is_live(grpc.insecure_channel(picker.health), "inference-extension")


def test_it_makes_a_certificate_for_gateways_that_insist_on_tls():
    """As the reference does where it is given none."""
    with epp("--secure-serving=true", "--zap-encoder", "json", "--v=2") as picker:
        host, port = picker.address.rsplit(":", 1)
        assert is_live(
            secure(picker.address, ssl.get_server_certificate((host, int(port))).encode())
        )


def test_a_certificate_that_is_renewed_is_served(tmp_path: Path):
    """At the next connection; a pair that is half there changes nothing."""
    first = make_certificate(tmp_path)
    with epp(f"--cert-path={tmp_path}", "--enable-cert-reload") as picker:
        assert is_live(secure(picker.address, first))
        (tmp_path / "tls.crt").write_text("half of a")
        assert is_live(secure(picker.address, first))
        second = make_certificate(tmp_path)
        assert is_live(secure(picker.address, second))
        with pytest.raises(grpc.RpcError):
            is_live(secure(picker.address, first))


RUN_WITHOUT_COMPUTE = """
import asyncio, sys

HEAVY = (
    "numpy", "torch", "transformers", "tokenizers", "safetensors", "starlette", "uvloop",
    "weft.compute", "weft.engine", "weft.rpc", "weft.web.http", "weft.model", "weft.text",
)


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(HEAVY):
            raise ImportError(f"{name} is not part of a picker")


sys.meta_path.insert(0, Refuse())

from weft.cli.picker.epp import epp  # what the command runs
from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.server.options import ServerOptions
from weft.epp.server.server import PickerServer
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub
import grpc


async def main():
    picker = await open_picker(PickerOptions(endpoints=("127.0.0.1:1",)))
    server = PickerServer(
        picker.director, picker.parsers, ServerOptions(grpc_port=0, grpc_health_port=0)
    )
    ports = await server.start()
    opening, body = ProcessingRequest(), ProcessingRequest()
    opening.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/completions")
    body.request_body.body = b'{"model":"m","prompt":"hi"}'
    body.request_body.end_of_stream = True
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        call = ExternalProcessorStub(channel).Process(iter((opening, body)))
        answers = [answer async for answer in call]
    await server.stop()
    await picker.close()
    assert [answer.WhichOneof("response") for answer in answers] == [
        "request_headers", "request_body"
    ]
    heavy = [name for name in sys.modules if name.startswith(HEAVY)]
    assert not heavy, heavy
    print("routed")


asyncio.run(main())
"""


def test_a_picker_runs_without_compute():
    """Its image installs no numpy, no torch and no native code, and needs none of our engine."""
    result = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT_COMPUTE],
        capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False,
    )  # fmt: skip
    assert result.stdout == "routed\n", result.stderr
