"""`RemoteClient`: an engine of another node, over the connection by which it joined."""

import asyncio

import msgspec

from weft.core.errors import EngineDead, WeftError
from weft.core.metrics import Metrics
from weft.engine.front.client import FrontClient
from weft.engine.front.process_client import OnLoading
from weft.engine.messages import MAX_FRAME_BYTES, Command
from weft.engine.nodes.link import Joined, Leaving, Refused
from weft.text.tokenizer import Tokenizer

_GRACE_S = 5.0  # beyond the drain, for last events
_MAX_EVENTS = 32  # that are handled before anybody else has a turn


class RemoteClient(FrontClient):
    """Made by `start_with`, inside a running event loop. It ends with the connection, and never comes back."""

    def __init__(
        self, joined: Joined, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        super().__init__(joined.config, tokenizer, metrics)
        self._channel = joined.channel
        self._closed = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start_with(
        cls,
        joined: Joined,
        tokenizer: Tokenizer,
        metrics: Metrics | None = None,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
    ) -> "RemoteClient":
        """Wait until its model is loaded; see `ProcessClient.start`."""
        client = cls(joined, tokenizer, metrics)
        client._on_loading = on_loading
        try:
            await client._ready
        except BaseException:
            client._channel.close()
            await client.wait_closed()
            raise
        return client

    def refuse(self, reason: str) -> None:
        """Tell the node that this engine cannot stay, and let it go."""
        self._channel.send(Refused(reason))
        self.shutdown()

    def shutdown(self, timeout: float | None = None) -> None:
        if self._begin_shutdown(timeout):
            self._close_in((timeout or 0) + _GRACE_S)

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def _send(self, command: Command) -> None:
        if self._channel.num_unsent > MAX_FRAME_BYTES:  # it takes nothing
            self._channel.close()
        self._channel.send(command)

    async def _read(self) -> None:
        why, num_events = "its node has left", 0
        try:
            async for event in self._channel.messages():
                if isinstance(event, Leaving):
                    self.shutdown(event.timeout_s)
                    continue
                self._on_event(event)
                num_events += 1
                if num_events % _MAX_EVENTS == 0:
                    await asyncio.sleep(0)
        except (msgspec.DecodeError, ValueError, OSError) as error:
            why = f"its node sent what is no event: {error}"
        finally:
            if self._dead_error is None:
                self._die(self._death(why))
            self._channel.close()
            self._closed.set()

    def _die(self, error: WeftError) -> None:
        super()._die(error)
        self._close_in(_GRACE_S)

    def _death(self, why: str) -> WeftError:
        if self._is_closing:
            return EngineDead("the engine was shut down")
        rank = self.vllm_config.data_parallel_rank
        return EngineDead(f"engine {rank} ended unexpectedly ({why}); it is started again")

    def _close_in(self, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._channel.close)
