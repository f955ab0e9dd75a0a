"""What keeps Weft from being fast, or from starting: weft.cli.machine.doctor, hardware and certificates."""

import datetime as dt
import json
import resource
import socket
from pathlib import Path

import pytest

from tests.rpc.test_auth import make_pair
from weft.cli.hardware import (
    check_cpu,
    check_cpu_quota,
    check_huge_pages,
    check_memory,
    check_numa,
)
from weft.cli.machine.certificates import validity
from weft.cli.machine.doctor import check_dates, check_open_files
from weft.cli.main import run
from weft.compute.native import Cpu

PLAIN = Cpu("x86-64", ("avx2", "fma"))
TILES = Cpu("x86-64", ("avx2", "amx_tile"))
PORTS = ("--port", "0", "--grpc-port", "0")
# Valid in January 2026; nobody has its key.
MONTH = """\
-----BEGIN CERTIFICATE-----
MIIBDDCBs6ADAgECAgEBMAoGCCqGSM49BAMCMBAxDjAMBgNVBAMMBW1vbnRoMB4X
DTI2MDEwMTAwMDAwMFoXDTI2MDIwMTAwMDAwMFowEDEOMAwGA1UEAwwFbW9udGgw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASP2844+aH70v3vdvUqM8XHIoJhkxhP
NZm1yoA2Os8jCZo78lpL3QnZ2g8H6vr4KM0ZLLvT/IHetxncxHNPV3AqMAoGCCqG
SM49BAMCA0gAMEUCIDCM7sAOkgH2SJ5r6jAD3caIytQtqLK6w1kkZ1HaNyLOAiEA
7o2qb3U6w1QhbugiSciewNu5esuu1CSCEZ3YH7GjFBw=
-----END CERTIFICATE-----
"""


def write(root: Path, files: dict[str, str]) -> Path:
    """A /proc and /sys of our own."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def report(capsys, *argv: str) -> tuple[int, dict[str, dict]]:
    """The exit status, and what was found by area."""
    status = run(["doctor", "--json", *argv])
    shown = json.loads(capsys.readouterr().out)
    assert status == (1 if shown["num_findings"] else 0)
    return status, {check["area"]: check for check in shown["checks"]}


@pytest.mark.parametrize(
    ("flags", "usable", "words", "is_fine"),
    [
        ("avx2 fma", PLAIN, "the CPU has no AMX", True),
        ("avx2 amx_bf16 amx_tile", TILES, "permitted", True),
        ("avx2 amx_bf16 amx_tile", PLAIN, "the system refuses it", False),
    ],
)
def test_tiles_that_the_kernel_withholds_are_found(
    tmp_path: Path, flags: str, usable: Cpu, words: str, is_fine: bool
):
    """A sandbox without arch_prctl costs most of the speed, and nothing else says so."""
    root = write(tmp_path, {"proc/cpuinfo": f"processor : 0\nflags\t\t: fpu {flags}\n"})
    _, amx = check_cpu(root, usable, ["avx2"])
    assert words in amx.found
    assert (amx.mend is None) == is_fine


def test_a_cpu_without_vectors_is_found(tmp_path: Path):
    """Models are computed in numpy there, slowly."""
    (first,) = check_cpu(tmp_path, Cpu("other", ()), ["portable"])
    assert first.mend is not None
    first, _ = check_cpu(tmp_path, PLAIN, ["avx2", "portable"])
    assert first.mend is None


def test_arm_is_asked_for_no_tiles(tmp_path: Path):
    """What it has instead says the path."""
    usable = Cpu("aarch64", ("asimd", "asimddp", "bf16", "i8mm"))
    (first,) = check_cpu(tmp_path, usable, ["neon_bf16", "neon", "portable"])
    assert first.mend is None
    assert first.found == "aarch64 with asimd, asimddp, bf16, i8mm; computed with neon_bf16"


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        ("always [madvise] never", True),
        ("[always] madvise never", True),
        ("always madvise [never]", False),
    ],
)
def test_huge_pages_that_are_off_are_found(tmp_path: Path, text: str, is_fine: bool):
    """The mend is the line for this file."""
    name = "sys/kernel/mm/transparent_hugepage/enabled"
    check = check_huge_pages(write(tmp_path, {name: text + "\n"}))
    assert (check.mend is None) == is_fine
    assert is_fine or check.mend == f"echo madvise | sudo tee /{name}"


def test_little_memory_is_found(tmp_path: Path):
    """By the machine or by the control group, whichever leaves less."""
    root = write(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 8388608 kB\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(600 << 20),
            "sys/fs/cgroup/memory.current": str(100 << 20),
        },
    )
    check = check_memory(root)
    assert "500 MiB free" in check.found
    assert check.mend is not None
    assert check_memory(root, free_bytes=2 << 30).mend is None


VERSION_2 = {"proc/self/cgroup": "0::/pod/me\n", "sys/fs/cgroup/pod/cpu.max": "150000 100000\n"}
VERSION_1 = {
    "proc/self/cgroup": "3:cpu,cpuacct:/me\n1:memory:/\n0::/\n",
    "sys/fs/cgroup/cpu/me/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/me/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize("files", [VERSION_2, VERSION_1], ids=["version 2", "version 1"])
def test_a_quota_that_is_no_whole_number_is_found(tmp_path: Path, files: dict[str, str]):
    """Two threads on the time of one and a half stop together, for a part of every period."""
    check = check_cpu_quota(write(tmp_path, files), num_cpus=4)
    assert "limits it to 1.5 CPUs" in check.found
    assert check.mend is not None
    assert "--num-threads 1 " in check.mend


@pytest.mark.parametrize("limit", ["max 100000", "200000 100000", "800000 100000"])
def test_other_quotas_are_fine(tmp_path: Path, limit: str):
    """None, a whole number of CPUs, or too much."""
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": limit + "\n"}
    assert check_cpu_quota(write(tmp_path, files), num_cpus=4).mend is None


@pytest.mark.parametrize(("num_cpus", "is_fine"), [(4, True), (6, False)])
def test_a_process_on_two_nodes_is_found(tmp_path: Path, num_cpus: int, is_fine: bool):
    """Only nodes that it may run on count; the mend binds to the one with most of them."""
    nodes = "sys/devices/system/node"
    root = write(tmp_path, {f"{nodes}/node0/cpulist": "0-3\n", f"{nodes}/node1/cpulist": "4-7\n"})
    check = check_numa(root, num_cpus)
    assert (check.mend is None) == is_fine
    assert is_fine or check.mend == "numactl --cpunodebind=0 --membind=0 weft serve ..."


@pytest.mark.parametrize(
    ("hard", "is_fine"), [(resource.RLIM_INFINITY, True), (1024, True), (512, False)]
)
def test_few_open_files_are_found(hard: int, is_fine: bool):
    """Each connection is one."""
    assert (check_open_files(hard).mend is None) == is_fine


def test_a_port_that_is_taken_is_found(capsys):
    """By the flag that chooses another; the status is that of findings."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, checks = report(capsys, "--port", str(port), "--grpc-port", "0")
    assert status == 1
    assert f"cannot listen on 127.0.0.1:{port}" in checks["HTTP port"]["found"]
    assert "weft serve --port 0" in checks["HTTP port"]["mend"]
    assert checks["gRPC port"]["mend"] is None


def test_only_what_will_be_served_is_looked_at(capsys, tmp_path: Path):
    """The settings are those of weft serve, its file among them."""
    path = tmp_path / "weft.toml"
    path.write_text("grpc = false\nport = 0\n")
    _, checks = report(capsys, "--config", str(path))
    assert "HTTP port" in checks
    assert "gRPC port" not in checks
    assert "HTTP TLS" not in checks


def test_a_sound_certificate_is_fine(capsys, tmp_path: Path):
    """Of HTTP and of gRPC, and the authority of clients; each until when."""
    pair = make_pair(tmp_path, "server")
    ((_, last),) = validity(pair.cert)
    now = dt.datetime.now(dt.UTC)
    assert dt.timedelta(hours=23) < last - now < dt.timedelta(hours=25)
    http = ("--ssl-certfile", str(pair.cert), "--ssl-keyfile", str(pair.key))
    grpc = ("--grpc-tls-cert", str(pair.cert), "--grpc-tls-key", str(pair.key))
    _, checks = report(capsys, *PORTS, *http, *grpc, "--grpc-tls-client-ca", str(pair.cert))
    # They expire tomorrow: soon enough to be said.
    for area in ("HTTP TLS", "gRPC TLS", "grpc-tls-client-ca"):
        assert f"{pair.cert} expires on {last:%Y-%m-%d}" in checks[area]["found"]


@pytest.mark.parametrize(
    ("days", "words", "is_fine"),
    [
        (-30, "valid until", True),
        (-5, "expires on", False),
        (2, "has expired on", False),
        (-60, "is not valid before", False),
    ],
)
def test_dates_of_a_certificate(tmp_path: Path, days: int, words: str, is_fine: bool):
    """So many days after its end; it is valid for 31 days."""
    cert = tmp_path / "server.crt"
    cert.write_text(MONTH)
    ((first, last),) = validity(cert)
    assert (first, last) == (
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 2, 1, tzinfo=dt.UTC),
    )
    check = check_dates("TLS", "--ssl-certfile", cert, last + dt.timedelta(days=days))
    assert words in check.found
    assert (check.mend is None) == is_fine


def test_a_certificate_without_its_key_is_found(capsys, tmp_path: Path):
    """And one that cannot be read, or is none: with what weft serve would say."""
    one, other = make_pair(tmp_path, "one"), make_pair(tmp_path, "other")
    _, checks = report(
        capsys, *PORTS, "--ssl-certfile", str(one.cert), "--ssl-keyfile", str(other.key)
    )
    assert "are not a certificate and its key" in checks["HTTP TLS"]["found"]
    _, checks = report(
        capsys, *PORTS, "--grpc-tls-cert", "/no/such.pem", "--grpc-tls-key", str(one.key)
    )
    assert "/no/such.pem" in checks["gRPC TLS"]["found"]


@pytest.mark.parametrize(
    "text",
    ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"],
)
def test_a_file_that_is_no_certificate_is_found(tmp_path: Path, text: str):
    """Whatever is in it: a finding, never a traceback."""
    path = tmp_path / "ca.pem"
    path.write_text(text)
    check = check_dates("TLS", "--grpc-tls-client-ca", path)
    assert check.mend == f"openssl x509 -in {path} -noout -dates"


def test_findings_come_with_the_line_that_mends_them(capsys):
    """For people: what was found, and below it what to type."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["doctor", "--port", "0", "--grpc-port", port]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("MEND  gRPC port"))
    assert lines[place + 1].strip().startswith("weft ps")
    assert lines[-1].endswith("problems found")


def test_versions_are_said(capsys):
    """What a report of a problem begins with."""
    _, checks = report(capsys, *PORTS)
    assert "Python 3." in checks["versions"]["found"]
    assert "_core" in checks["native core"]["found"]
