"""`OutputPorts`: sends the outputs of API servers' requests directly to these API servers."""

from collections import OrderedDict

import msgspec
import zmq

from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import SequenceOutput
from weft.engine.ipc.messages import Event, StepOutput

# Separates the name of an API server from the rest of an `engine_id` that it made.
SEPARATOR = "/"
# More than run at a time: a restarted API server has a new name, and the oldest names are dropped.
_MAX_PORTS = 256
_MAX_RETRY_MS = 5_000
_NOTHING = EngineLoad()


class OutputPorts:
    """A socket for each API server, in the directory `directory`; owned by the engine's thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", directory: str) -> None:
        self._context = context
        self._directory = directory
        self._encoder = msgspec.msgpack.Encoder()
        self._ports: OrderedDict[str, zmq.Socket[bytes]] = OrderedDict()

    def divert(self, event: Event) -> Event:
        """Sends each API server the outputs of its requests; returns the event with the fields that the supervisor
        counts.
        """
        if not isinstance(event, StepOutput) or not event.outputs:
            return event
        by_server: dict[str, list[SequenceOutput]] = {}
        for output in event.outputs:
            server = output.engine_id.partition(SEPARATOR)[0]
            by_server.setdefault(server, []).append(output)
        for server, outputs in by_server.items():
            step = StepOutput(outputs=outputs, load=_NOTHING)
            self._port(server).send(self._encoder.encode(step))
        return msgspec.structs.replace(event, outputs=[*map(_counted, event.outputs)])

    def close(self) -> None:
        """Closes all sockets; unsent outputs are sent within the sockets' linger time."""
        for port in self._ports.values():
            port.close()

    def _port(self, server: str) -> "zmq.Socket[bytes]":
        port = self._ports.get(server)
        if port is None:
            port = self._context.socket(zmq.PUSH)
            port.set_hwm(0)  # bounded by admission, like the sockets of `EngineChild`
            port.set(zmq.RECONNECT_IVL_MAX, _MAX_RETRY_MS)
            port.set(zmq.LINGER, 1_000)
            port.connect(f"ipc://{self._directory}/{server}")
            self._ports[server] = port
            if len(self._ports) > _MAX_PORTS:
                self._ports.popitem(last=False)[1].close(0)
        self._ports.move_to_end(server)
        return port


def _counted(output: SequenceOutput) -> SequenceOutput:
    """Returns an output without the fields that only the request's reader needs."""
    return SequenceOutput(
        engine_id=output.engine_id,
        index=output.index,
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
        error=output.error,
        pooled=None if output.pooled is None else b"",
    )
