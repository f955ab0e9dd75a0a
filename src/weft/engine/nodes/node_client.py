"""`NodeClient`: the client of an engine on another node. It uses the connection by which the engine joined."""

import asyncio
from collections.abc import Callable

import msgspec

from weft.core.observe.metrics import Metrics
from weft.core.values.controls import HUNG_S
from weft.engine.clients.process_client import ApartClient, OnLoading
from weft.engine.ipc.messages import MAX_FRAME_BYTES, Command
from weft.engine.nodes.link import Joined, Leaving, MustLeave
from weft.text.tokenizer import Tokenizer

_MAX_EVENTS = 32  # maximum number handled in one turn of the event loop


class NodeClient(ApartClient):
    """Client of an engine on another machine; made by `start_with`, inside a running event loop.

    The client ends when the connection ends, and cannot be restarted. `on_leaving` is called when the node begins to
    shut down.
    """

    def __init__(
        self, joined: Joined, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        super().__init__(joined.config, tokenizer, metrics)
        self.on_leaving: Callable[[], None] = lambda: None
        self._channel = joined.channel
        self._heartbeat = self._channel.beat(HUNG_S)
        self._silence = asyncio.create_task(self._end_silent())
        self._is_silent = False
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start_with(
        cls,
        joined: Joined,
        tokenizer: Tokenizer,
        metrics: Metrics | None = None,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
    ) -> "NodeClient":
        """Waits until the engine's model is loaded. The arguments are those of `ProcessClient.start`."""
        client = cls(joined, tokenizer, metrics)
        await client._wait_loaded(on_loading)
        return client

    def refuse(self, reason: str) -> None:
        """Tells the node that its engine cannot stay, and ends the client."""
        self._channel.send(MustLeave(reason))
        self.shutdown()

    def _send(self, command: Command) -> None:
        if self._channel.num_unsent > MAX_FRAME_BYTES:  # the node does not read the commands
            self._channel.close()
        self._channel.send(command)

    async def _end_silent(self) -> None:
        await self._heartbeat.silence()
        self._is_silent = True
        self._channel.abort()

    async def _read(self) -> None:
        why, num_events = "its node has left", 0
        try:
            async for event in self._channel.messages():
                if isinstance(event, Leaving):
                    self.on_leaving()
                    self.shutdown(event.timeout_s)
                    continue
                self._on_event(event)
                num_events += 1
                if num_events % _MAX_EVENTS == 0:
                    await asyncio.sleep(0)
        except (msgspec.DecodeError, ValueError, OSError) as error:
            why = f"its node sent an invalid event: {error}"
        finally:
            self._silence.cancel()
            self._channel.close()
            self._end(f"its node has not answered for {HUNG_S:g} s" if self._is_silent else why)

    def _kill(self) -> None:
        self._channel.abort()
