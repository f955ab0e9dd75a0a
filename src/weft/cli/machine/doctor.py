"""Checks of `weft doctor`, for the server that `weft serve` would start with the same arguments."""

import platform
import resource
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from weft import __version__
from weft.cli.arguments.flags import pick
from weft.cli.hardware import (
    Check,
    check_cpu,
    check_cpu_quota,
    check_huge_pages,
    check_memory,
    check_numa,
)
from weft.cli.machine.certificates import validity
from weft.cli.machine.serve_line import read_serve_line
from weft.cli.options import ServeOptions
from weft.cli.process.limits import LOW_OPEN_FILES, WANTED_OPEN_FILES, check_port
from weft.cli.shown import print_json
from weft.compute.native import _core
from weft.core.errors import ConfigError
from weft.core.observe.terminal import say
from weft.http.tls import server_tls
from weft.rpc.options import RpcOptions
from weft.rpc.server import credentials
from weft.web.http.options import HttpOptions

EXIT_FINDINGS = 1
_LIBRARIES = ("grpcio", "numpy", "tokenizers", "llguidance")
_SOON = timedelta(days=14)


def run(arguments: Sequence[str], *, json: bool, root: Path = Path("/")) -> int:
    """Runs all checks; returns 1 if there is a problem."""
    options = read_serve_line(arguments).options
    checks = [*check_versions(), *check_machine(root), *check_server(options)]
    findings = [check for check in checks if check.mend is not None]
    if json:
        print_json({"version": __version__, "num_findings": len(findings), "checks": checks})
    else:
        _print(checks, len(findings))
    return EXIT_FINDINGS if findings else 0


def _print(checks: Sequence[Check], num_findings: int) -> None:
    for check in checks:
        say(f"{'ok  ' if check.mend is None else 'MEND'}  {check.area:<12}{check.found}")
        if check.mend is not None:
            say(f"{'':<18}{check.mend}")
    say("no problems found" if not num_findings else f"{num_findings} problems found")


def check_versions() -> Iterator[Check]:
    """Reports the versions of Weft, Python and the main libraries. Importing the libraries proves that the native core
    can be loaded.
    """
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    yield Check(
        area="versions",
        found=f"weft {__version__}, Python {platform.python_version()}, {libraries}",
    )
    core = Path(str(_core.__file__))
    built = datetime.fromtimestamp(core.stat().st_mtime, UTC)
    yield Check(area="native core", found=f"{core.name}, built {built:%Y-%m-%d}")


def check_machine(root: Path) -> Iterator[Check]:
    """Checks the CPU, the memory and the limits on them. `root` is the directory that contains /proc and /sys."""
    yield from check_cpu(root)
    yield check_huge_pages(root)
    yield check_memory(root)
    yield check_cpu_quota(root)
    yield check_numa(root)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def check_open_files(hard: int) -> Check:
    """Checks the limit on open files `hard`: each connection needs an open file."""
    if hard == resource.RLIM_INFINITY or hard >= LOW_OPEN_FILES:
        shown = "any number" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        return Check(area="open files", found=f"{shown} allowed")
    return Check(
        area="open files",
        found=f"only {hard:,} allowed: connections fail beyond that",
        mend=f"ulimit -Hn {WANTED_OPEN_FILES}  # as root, before weft serve",
    )


def check_server(options: ServeOptions) -> Iterator[Check]:
    """Checks the ports, certificates and keys of the server that `options` would start."""
    http, rpc = pick(options, HttpOptions), pick(options, RpcOptions)
    if options.http and http.uds is None:
        yield check_free("HTTP port", http.host, http.port, "--port")
    if options.grpc and options.remote is None:
        yield check_free("gRPC port", http.host, rpc.port, "--grpc-port")
    yield from check_pair("HTTP TLS", http, "--ssl-certfile", http.ssl_certfile)
    yield from check_pair("gRPC TLS", rpc, "--grpc-tls-cert", rpc.tls_cert)
    for flag, path in (
        ("--ssl-ca-certs", http.ssl_ca_certs),
        ("--grpc-tls-client-ca", rpc.tls_client_ca),
        ("--remote-tls-ca", options.remote_tls_ca),
    ):
        if path is not None:
            yield check_dates(flag.removeprefix("--"), flag, path)


def check_free(area: str, host: str, port: int, flag: str) -> Check:
    """Checks that a server can listen on the port at this moment."""
    try:
        check_port(host, port, flag)
    except ConfigError as error:
        return Check(
            area=area,
            found=str(error),
            mend=f"weft ps  # lists the servers; or choose a free port: weft serve {flag} 0",
        )
    return Check(area=area, found=f"{host}:{port} is free")


def check_pair(
    area: str, options: HttpOptions | RpcOptions, flag: str, cert: Path | None
) -> Iterator[Check]:
    """Checks that the certificate and its key can be loaded; yields nothing if `options` use no TLS."""
    try:
        loaded = (
            server_tls(options.tls_files)
            if isinstance(options, HttpOptions)
            else credentials(options)
        )
    except ConfigError as error:
        yield Check(
            area=area,
            found=str(error),
            mend=f"weft serve {flag} CERT.pem ...  # and the key that belongs to it",
        )
        return
    if loaded is not None and cert is not None:
        yield check_dates(area, flag, cert)


def check_dates(area: str, flag: str, path: Path, now: datetime | None = None) -> Check:
    """Checks that every certificate in the file is valid now and during the next days."""
    now = datetime.now(UTC) if now is None else now
    look = f"openssl x509 -in {path} -noout -dates"
    try:
        dates = validity(path)
    except (OSError, ValueError) as error:
        return Check(area=area, found=f"{flag} {path}: {error}", mend=look)
    first, last = max(first for first, _ in dates), min(last for _, last in dates)
    if now < first:
        return Check(area=area, found=f"{path} is not valid before {first:%Y-%m-%d}", mend=look)
    renew = (
        f"certbot renew  # or renew it as it was created, then restart the server; check: {look}"
    )
    if last < now:
        return Check(area=area, found=f"{path} has expired on {last:%Y-%m-%d}", mend=renew)
    if last < now + _SOON:
        return Check(area=area, found=f"{path} expires on {last:%Y-%m-%d}", mend=renew)
    return Check(area=area, found=f"{path} is valid until {last:%Y-%m-%d}")
