"""`weft serve --headless`: runs engines for the head node of a group of machines, without HTTP and gRPC servers."""

import asyncio
import logging

from weft.cli.process.signals import Signalled
from weft.cli.serving.servers import EXIT_SIGNALLED, Serving
from weft.cli.serving.start_show import show_start
from weft.core.address import join_host_port
from weft.core.config.ranks import local_ranks
from weft.core.errors import ConfigError
from weft.core.observe.progress import Progress

log = logging.getLogger("weft.cli")


class HeadlessServing(Serving):
    """`Serving` without HTTP and gRPC servers: its engines connect to the head node."""

    async def run(self) -> int:
        """Keeps the engines connected to the head node until a signal; returns the exit status."""
        if self._options.engine_options().engine_restarts is not None:
            raise ConfigError(
                "--engine-restarts does not go with --headless: a node restarts its engines without limit"
            )
        self._signals.listen()
        self._progress = Progress(self._started)
        try:
            with show_start(self._progress):
                found = await self._signals.unless(self._on_thread(self._find))
        except Signalled as signalled:
            return EXIT_SIGNALLED + signalled.number
        from weft.engine.nodes.node import Node  # noqa: PLC0415 - imported with the model

        ranks = found.config.ranks
        assert ranks is not None
        assert ranks.link is not None
        log.info(
            "no server starts here: engines %s join the head at %s",
            ", ".join(map(str, local_ranks(found.config))),
            join_host_port(ranks.link.host, ranks.link.port),
        )
        node = Node(found.config, found.checkpoint.tokenizer_files)
        running = asyncio.create_task(node.run())
        try:
            await self._signals.unless(asyncio.wait((running,)))
        except Signalled:
            timeout_s = self._options.shutdown_timeout
            log.info("open requests of the head get %g s to finish", timeout_s)
            try:
                await self._signals.unless(node.leave(timeout_s))
            except Signalled as again:
                log.warning("%s again: stopping now", again.name)
                running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if not running.cancelled():
            running.result()
        return 0
