"""`OutputPorts`: where an engine's process sends outputs whose requests came by way of an API server."""

from collections import OrderedDict

import msgspec
import zmq

from weft.core.types import EngineLoad, SequenceOutput
from weft.engine.messages import Event, StepOutput

# Between the name of an API server and the rest of an `engine_id` that it gave.
SEPARATOR = "/"
# More than there are at once: an API server that was started again has another name, and those that
# are gone fall out.
_MAX_PORTS = 256
_MAX_RETRY_MS = 5_000
_NOTHING = EngineLoad()


class OutputPorts:
    """A socket for each API server, below `directory`; owned by the engine's thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", directory: str) -> None:
        self._context = context
        self._directory = directory
        self._encoder = msgspec.msgpack.Encoder()
        self._ports: OrderedDict[str, zmq.Socket[bytes]] = OrderedDict()

    def divert(self, event: Event) -> Event:
        """Send each API server what is of its requests; what is left is for who counts them."""
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
        """Close all; what is unsent goes on as the context's end lets it."""
        for port in self._ports.values():
            port.close()

    def _port(self, server: str) -> "zmq.Socket[bytes]":
        port = self._ports.get(server)
        if port is None:
            port = self._context.socket(zmq.PUSH)
            port.set_hwm(0)  # bounded by admission, as the sockets of `EngineChild` are
            port.set(zmq.RECONNECT_IVL_MAX, _MAX_RETRY_MS)
            port.set(zmq.LINGER, 1_000)
            port.connect(f"ipc://{self._directory}/{server}")
            self._ports[server] = port
            if len(self._ports) > _MAX_PORTS:
                self._ports.popitem(last=False)[1].close(0)
        self._ports.move_to_end(server)
        return port


def _counted(output: SequenceOutput) -> SequenceOutput:
    """What is to be known of an output where nobody reads it."""
    return SequenceOutput(
        engine_id=output.engine_id,
        index=output.index,
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
        error=output.error,
        pooled=None if output.pooled is None else b"",
    )
