"""Gossip between simulated pickers: each hears, some time later, what the others have decided and what has ended."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.scale.routers import MODEL, Choice, PickerRouter, Router
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import FollowsResponse, Learner
from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.values import InferenceRequest

_numbers = count(-1, -1)  # of requests at other pickers: tickets of a picker's own are positive


@dataclass(frozen=True, slots=True)
class SharedChoice(Choice):
    """A choice that other pickers hear of, under a number."""

    number: int = 0


class Peer:
    """One picker as the others tell it: it counts their requests, and learns the prefixes that they have sent."""

    def __init__(self, router: PickerRouter) -> None:
        picker = router.picker
        self._pool = picker.pool
        self._parts = picker.assembly.parts()
        self._plugins = tuple(picker.assembly.plugins.values())
        self._endpoints: dict[int, Endpoint] = {}

    def hear(self, number: int, request: InferenceRequest, address: str) -> None:
        """Another picker has sent a request to a worker."""
        now = asyncio.get_running_loop().time()
        endpoints = tuple(self._pool)
        cycle = Cycle(request=request, model=MODEL, candidates=endpoints, now=now, ticket_id=number)
        for step in self._parts.producers:
            step.plugin.produce(cycle)
        endpoint = next(each for each in endpoints if each.host_port == address)
        for plugin in self._plugins:
            if isinstance(plugin, Learner):
                plugin.picked(cycle, Schedule("default", {"default": [endpoint]}))
        endpoint.unseen[number] = now
        self._endpoints[number] = endpoint

    def first_token(self, number: int) -> None:
        """The prompt of such a request is computed."""
        for plugin in self._plugins:
            if isinstance(plugin, FollowsResponse):
                plugin.first_token(number)

    def ended(self, number: int) -> None:
        """Such a request is over."""
        for plugin in self._plugins:
            if isinstance(plugin, FollowsResponse):
                plugin.ended(number)
        self._endpoints.pop(number).unseen.pop(number, None)


class GossipingRouter:
    """A picker that tells the others, who hear it after a while. What it tells arrives in order."""

    def __init__(self, router: PickerRouter, delay_s: float) -> None:
        self._router = router
        self._delay_s = delay_s
        self._peers: Sequence[Peer] = ()
        self._loop = asyncio.get_running_loop()

    def join(self, peers: Sequence[Peer]) -> None:
        """Tell these from now on."""
        self._peers = peers

    async def pick(self, request: InferenceRequest) -> Choice:
        """The picker's decision, which the others hear of."""
        choice = await self._router.pick(request)
        number = next(_numbers)
        address = self._router.address(choice.worker)
        for peer in self._peers:
            self._loop.call_later(self._delay_s, peer.hear, number, request, address)
        return SharedChoice(choice.worker, choice.ticket, number)

    def first_token(self, choice: Choice) -> None:
        """To the picker, and to the others if it follows responses."""
        assert isinstance(choice, SharedChoice)
        self._router.first_token(choice)
        if choice.ticket is not None:
            for peer in self._peers:
                self._loop.call_later(self._delay_s, peer.first_token, choice.number)

    def ended(self, choice: Choice, *, is_whole: bool) -> None:
        """The same."""
        assert isinstance(choice, SharedChoice)
        self._router.ended(choice, is_whole=is_whole)
        for peer in self._peers:
            self._loop.call_later(self._delay_s, peer.ended, choice.number)

    async def close(self) -> None:
        """End the picker."""
        await self._router.close()


def gossiping(routers: Sequence[Router], delay_s: float) -> Sequence[Router]:
    """The pickers of a run, each of which tells all others after `delay_s`."""
    pickers = [each for each in routers if isinstance(each, PickerRouter)]
    peers = [Peer(each) for each in pickers]
    joined = [GossipingRouter(each, delay_s) for each in pickers]
    for own, router in enumerate(joined):
        router.join([peer for number, peer in enumerate(peers) if number != own])
    return joined
