"""Options of the picker's gRPC server: addresses, TLS and limits."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from weft.core.values.declare import Flag
from weft.epp.server.limits import PickerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Addresses, TLS and limits. With port 0, the operating system chooses the port."""

    host: Annotated[str, Flag("Address to listen on.", "Server")] = "127.0.0.1"
    grpc_port: Annotated[
        int, Flag("Port of the ext_proc server that Envoy calls; 0 takes a free one.", "Server")
    ] = 9002
    grpc_health_port: Annotated[
        int,
        Flag("Port of a separate health server (grpc.health.v1); 0 takes a free one.", "Server"),
    ] = 9003
    max_receive_bytes: Annotated[
        int,
        Flag(
            "Maximum size of a gRPC message from the gateway.",
            "Server",
            is_size=True,
            name="grpc_max_recv_msg_size",
        ),
    ] = 4 * 2**20
    max_send_bytes: Annotated[
        int,
        Flag(
            "Maximum size of a gRPC message to the gateway.",
            "Server",
            is_size=True,
            name="grpc_max_send_msg_size",
        ),
    ] = 4 * 2**20
    cert_path: Annotated[
        Path | None, Flag("Directory with tls.crt and tls.key; enables TLS.", "Server")
    ] = None
    enable_cert_reload: Annotated[
        bool, Flag("Reload the certificate files of --cert-path when they change.", "Server")
    ] = False
    is_self_signed: bool = False  # TLS with a self-signed certificate, without `cert_path`
    handshake_timeout_s: float = 10.0  # for TLS and the first HTTP/2 frames
    measures_streams: Annotated[
        bool,
        Flag(
            "Record metrics of ext_proc streams (extproc_* series).",
            "Server",
            name="enable_grpc_stream_metrics",
            negatable=False,
        ),
    ] = False
    limits: PickerLimits = field(default_factory=PickerLimits)

    @property
    def security(self) -> str:
        """Describes the transport security that the gateway must use."""
        if self.cert_path is not None:
            return "TLS"
        return "TLS, self-signed" if self.is_self_signed else "no TLS"
