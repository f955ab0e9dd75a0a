"""`Director`: decides on the endpoint of each request, and updates counts with the events of its response."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from weft.epp.config.options import DEFAULT_NAME, PickerOptions
from weft.epp.decision.claims import read_fairness_id, read_model, read_priority
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.director_parts import Parts
from weft.epp.decision.explain import DecisionRing
from weft.epp.decision.plugin import FollowsTimes, FollowsUsage
from weft.epp.decision.saturation import PoolRoom
from weft.epp.decision.staleness import Staleness
from weft.epp.decision.store_filter import storing
from weft.epp.decision.telemetry import RequestMetrics
from weft.epp.decision.tickets import Decision, Ending, OpenTickets, ResponseTimes, Ticket
from weft.epp.flow.control import FlowControl
from weft.epp.flow.item import Item, Lease, own_ttl_s
from weft.epp.flow.series import FlowSeries
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.objects import Objects
from weft.epp.pool.pool import reachable
from weft.epp.request.slo import read_slo
from weft.epp.request.values import Drop, InferenceRequest, Refused, Usage

SCORES_KEY = "x-gateway-destination-endpoint-scores"


class Director:
    """Decides on each request: admission, producers, profiles. A decision is counted before the next one begins."""

    def __init__(
        self, parts: Parts, options: PickerOptions, clock: Callable[[], float] = monotonic
    ) -> None:
        self._parts = parts
        self._pool = parts.pool
        self._options = options
        self._pool_name = options.pool_name or DEFAULT_NAME
        self._clock = clock
        self.objects = Objects()
        self.decisions = DecisionRing(options.num_recorded_decisions)
        self._tickets = OpenTickets(options.ticket_ttl_s)
        self._staleness = Staleness(parts.pool, options.max_load_age_s)
        self._room = PoolRoom(parts.pool, parts.detector, clock)
        self._flow = self._open_flow(parts)
        self._evictor = None if self._flow is None else self._flow.evictor
        self._follows = options.track_responses or bool(
            parts.followers or parts.reporters or self._evictor
        )
        self._timed = [each for each in parts.followers if isinstance(each, FollowsTimes)]
        self._telemetry = RequestMetrics(parts.metrics, follows=self._follows)
        parts.metrics.before_text(self._update_gauges)
        self._num_picks = 0
        self._is_closed = False

    @property
    def is_ready(self) -> bool:
        """True if the pool has an endpoint."""
        return bool(self._pool.ready) and not self._is_closed

    @property
    def num_open(self) -> int:
        """Number of requests whose response is followed and has not ended."""
        return len(self._tickets)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for capacity in flow control."""
        return 0 if self._flow is None else self._flow.num_waiting

    @property
    def max_wait_s(self) -> float:
        """Maximum seconds that flow control lets a request wait."""
        return 0.0 if self._parts.flow is None else self._parts.flow.max_wait_s

    def use_profiles(self, parts: Parts) -> None:
        """Decides by the profiles of `parts` from now on; requests that were decided are not affected."""
        self._parts = replace(self._parts, profiles=parts.profiles, learners=parts.learners)

    def close(self) -> None:
        """Refuses all waiting requests and all later ones."""
        self._is_closed = True
        if self._flow is not None:
            self._flow.close()

    async def pick(self, request: InferenceRequest, subset: tuple[str, ...] | None) -> Decision:
        """Chooses the endpoint of a request, and counts the request at that endpoint at once. Raises `Refused`."""
        cycle = self._open_cycle(request, self._clock())
        try:
            if request.needs_model and not cycle.model:
                raise Refused(400, "model not found in request body")
            for plugin in self._parts.preparers:
                await plugin.prepare(cycle)
            if self._flow is None:
                return self._place(cycle, subset)
            item = self._to_item(cycle, subset)
            decision: Decision = await self._flow.admit(item)
            return decision
        except Refused as refused:
            self._note(cycle, refused)
            raise

    def _place(self, cycle: Cycle, subset: tuple[str, ...] | None) -> Decision:
        """Chooses the endpoint without awaiting, so that no two requests are decided with the same counts."""
        cycle.now = self._clock()
        cycle.is_placed = True
        cycle.candidates = self._candidates(cycle, subset)
        cycle.storing = storing(cycle.candidates, cycle.request.store)
        schedule = self._schedule(cycle)
        decision = self._commit(cycle, schedule)
        self._note(cycle, schedule)
        return decision

    def pick_any(self, subset: tuple[str, ...] | None, *, is_grpc: bool, store: str = "") -> str:
        """Returns the address of any endpoint with the store, for a request without a prompt. Raises `Refused`."""
        found = storing(reachable(self._allowed(subset)), store)
        return random.choice(found).address(is_grpc=is_grpc)

    def on_response_headers(self, ticket: Ticket, status: int) -> Mapping[str, str]:
        """Records the status of the response; returns headers for the client."""
        ticket.status = status
        return {}

    def on_first_token(self, ticket: Ticket) -> None:
        """Records that the first piece of the response body arrived."""
        if ticket.first_token_at is not None or ticket.is_over:
            return
        ticket.first_token_at = ticket.last_piece_at = self._clock()
        ticket.num_pieces = 1
        self._give_back(ticket)
        if ticket.is_streaming:
            for plugin in self._parts.followers:
                plugin.first_token(ticket.id)
        self._wake()

    def on_piece(self, ticket: Ticket) -> None:
        """Records that a further piece of the response body arrived."""
        if ticket.is_streaming and ticket.last_piece_at is not None:
            now = self._clock()
            ticket.num_pieces += 1
            self._telemetry.next_piece(ticket, now - ticket.last_piece_at)
            ticket.last_piece_at = now

    def on_size(self, ticket: Ticket, num_bytes: int) -> None:
        """Records the size of the response body."""
        ticket.num_body_bytes = num_bytes

    def on_usage(self, ticket: Ticket, usage: Usage) -> None:
        """Records the token counts that the response reports. A later report replaces an earlier one."""
        ticket.usage = usage

    def on_end(self, ticket: Ticket, ending: Ending) -> Mapping[str, Any]:
        """Records the end of the response; returns dynamic metadata by namespace. Only the first call counts."""
        metadata: dict[str, dict[str, float]] = {}
        if self._end(ticket, ending) and ending is Ending.NATURAL:
            for plugin in self._parts.reporters:
                for namespace, values in plugin.report(ticket.usage).items():
                    metadata.setdefault(namespace, {}).update(values)
        return metadata

    def sweep(self) -> None:
        """Drops requests whose end was never reported; called every few seconds."""
        if self._flow is not None:
            self._flow.sweep()
        now = self._clock()
        for ticket in self._tickets.expired(now):
            self._end(ticket, Ending.ERROR)
        for endpoint in self._pool:
            endpoint.forget(now - self._options.unseen_ttl_s)

    # -- before the decision ------------------------------------------------------------------

    def _open_cycle(self, request: InferenceRequest, now: float) -> Cycle:
        headers = request.headers
        cycle = Cycle(
            request=request, model=request.model, candidates=(), now=now, arrived=now,
            ticket_id=self._tickets.next_id(),
            priority=read_priority(headers, self.objects),
            fairness_id=read_fairness_id(headers, self._parts.identities),
        )  # fmt: skip
        if request.model or request.needs_model:
            rewrite = self.objects.rewrite(request.model)
            if rewrite is not None:
                cycle.model = rewrite[1]
                self._telemetry.rewritten(rewrite[0], request.model, rewrite[1])
            else:
                cycle.model = read_model(request, self._options.default_model)
        return cycle

    def _open_flow(self, parts: Parts) -> FlowControl | None:
        if parts.flow is None:
            return None
        series = FlowSeries(parts.metrics, self._pool_name)
        flow = FlowControl(parts.flow, self._room, series, self._clock)
        parts.pool.on_load(flow.wake)
        parts.pool.on_joined(lambda _: flow.wake())
        parts.pool.on_left(lambda _: flow.wake())
        parts.metrics.before_text(flow.refresh_series)
        return flow

    def _to_item(self, cycle: Cycle, subset: tuple[str, ...] | None) -> Item:
        def abandon(decision: Decision) -> None:
            if decision.ticket is not None:
                self._end(decision.ticket, Ending.DISCONNECTED)

        return Item(
            priority=cycle.priority, fairness_id=cycle.fairness_id,
            num_bytes=cycle.request.num_body_bytes, labels=self._telemetry.labels(cycle),
            arrived=cycle.arrived, slo=read_slo(cycle.request.headers),
            own_ttl_s=own_ttl_s(cycle.request.headers),
            place=lambda: self._place(cycle, subset), abandon=abandon,
        )  # fmt: skip

    def _allowed(self, subset: tuple[str, ...] | None) -> Sequence[Endpoint]:
        if self._is_closed:
            raise Refused(503, "the endpoint picker is shutting down", Drop.SHUTTING_DOWN)
        found = self._pool.select(None if self._options.disable_endpoint_subset_filter else subset)
        if not found:
            which = "the pool is empty" if not self._pool.ready else "the subset hint names none"
            raise Refused(503, f"no endpoint is available: {which}", Drop.NO_ENDPOINTS)
        return found

    def _candidates(self, cycle: Cycle, subset: tuple[str, ...] | None) -> Sequence[Endpoint]:
        allowed = self._allowed(subset)
        available = reachable(allowed)
        if len(available) < len(allowed):
            cycle.unreachable = [each for each in allowed if each.is_refusing]
        if cycle.priority < 0 and self._flow is None:
            saturation = self._parts.detector.saturation(available, cycle.now)
            if saturation >= 1.0:
                raise Refused(
                    429,
                    f"the pool is saturated ({saturation:.2f}) and priority {cycle.priority} is "
                    "sheddable",
                )
        return available

    # -- the decision -------------------------------------------------------------------------

    def _schedule(self, cycle: Cycle) -> Schedule:
        for step in self._parts.producers:
            started = self._clock()
            step.plugin.produce(cycle)
            step.timer.observe(self._clock() - started)
        for plugin in self._parts.admitters:
            plugin.admit(cycle)
        schedule = self._parts.handler.schedule(cycle, self._parts.profiles)
        if "if-available" in cycle.request.headers.get("prefer", ""):
            cycle.require_cached(schedule.target)
        return schedule

    def _commit(self, cycle: Cycle, schedule: Schedule) -> Decision:
        for plugin in self._parts.learners:
            plugin.picked(cycle, schedule)
        endpoints = {picks[0]: None for picks in schedule.picks.values() if picks}
        self._num_picks += 1
        for endpoint in endpoints:
            endpoint.last_pick = self._num_picks
            endpoint.unseen[cycle.ticket_id] = cycle.now
        self._pool.stir()
        ticket = Ticket(
            id=cycle.ticket_id, endpoints=tuple(endpoints), started=cycle.arrived,
            labels=self._telemetry.labels(cycle), is_streaming=cycle.request.is_streaming,
            is_followed=self._follows, num_prompt_tokens=cycle.num_prompt_tokens,
        )  # fmt: skip
        if self._follows:
            self._tickets.add(ticket, cycle.now)
            self._telemetry.opened(ticket)
        if self._evictor is not None:
            self._evictor.opened(
                Lease(
                    id=ticket.id, priority=cycle.priority, started=cycle.now,
                    revoke=lambda: _revoke(ticket),
                )
            )  # fmt: skip
        return self._to_decision(cycle, schedule, ticket)

    def _to_decision(self, cycle: Cycle, schedule: Schedule, ticket: Ticket) -> Decision:
        is_grpc = cycle.request.is_grpc
        addresses = [each.address(is_grpc=is_grpc) for each in schedule.picks[schedule.primary]]
        if schedule.destination is not None:
            addresses[0] = schedule.destination
        return Decision(
            endpoints=tuple(addresses),
            set_headers={**schedule.set_headers, **cycle.request_headers},
            response_headers=cycle.response_headers,
            metadata=_scores(cycle, schedule) if self._options.emit_endpoint_scores else {},
            rewritten_model=None if cycle.model == cycle.request.model else cycle.model,
            tracks_response=self._follows or bool(cycle.response_headers),
            ticket=ticket,
        )

    # -- after the decision --------------------------------------------------------------------

    def _note(self, cycle: Cycle, outcome: Schedule | Refused) -> None:
        duration_s = self._clock() - cycle.now if cycle.is_placed else 0.0
        self._telemetry.decided(cycle, outcome, duration_s)
        stale = self._staleness.among(cycle.candidates, self._clock())
        self.decisions.keep(cycle, outcome, duration_s=duration_s, stale=stale)

    def _update_gauges(self) -> None:
        """Updates the pool's gauges before they are read."""
        self._telemetry.pool(
            self._pool_name,
            self._pool.ready,
            num_stale=len(self._staleness.among(self._pool.ready, self._clock())),
            detector=self._parts.detector_name,
            saturation=self._room.by_stage(),
            now=self._clock(),
        )

    def _wake(self) -> None:
        if self._flow is not None:
            self._flow.wake()

    def _give_back(self, ticket: Ticket) -> None:
        for endpoint in ticket.endpoints:
            endpoint.unseen.pop(ticket.id, None)

    def _end(self, ticket: Ticket, ending: Ending) -> bool:
        """Ends the ticket of a request; returns False if the ticket had ended before."""
        if not self._tickets.close(ticket):
            return False
        self._give_back(ticket)
        if ending is Ending.ERROR and not 400 <= ticket.status < 500:  # not a client error
            ticket.endpoints[0].failed[ticket.id] = self._clock()
        self._report_times(ticket, ending)
        for plugin in self._parts.followers:
            if isinstance(plugin, FollowsUsage):
                plugin.used(ticket.id, ticket.usage)
            plugin.ended(ticket.id)
        if self._evictor is not None:
            self._evictor.ended(ticket.id)
        self._wake()
        if ticket.is_followed:
            self._telemetry.ended(ticket, ending, self._clock())
        return True

    def _report_times(self, ticket: Ticket, ending: Ending) -> None:
        """Records the latencies of complete, followed responses; other responses have no meaningful latencies."""
        is_whole = ending is Ending.NATURAL and ticket.status == 200 and ticket.is_followed
        if not self._timed or not is_whole or ticket.first_token_at is None:
            return
        times = ResponseTimes(
            ticket_id=ticket.id, arrived=ticket.started, first_token_at=ticket.first_token_at,
            ended=self._clock(),
            num_tokens=ticket.usage.num_completion_tokens or ticket.num_pieces,
            is_streaming=ticket.is_streaming,
        )  # fmt: skip
        for plugin in self._timed:
            plugin.timed(times)


def _revoke(ticket: Ticket) -> bool:
    """Ends the response early and returns True; returns False if the response is not followed yet."""
    if ticket.revoke is None:
        return False
    ticket.revoke()
    return True


def _scores(cycle: Cycle, schedule: Schedule) -> dict[str, Any]:
    run = next(run for run in cycle.runs if run.profile == schedule.primary)
    totals = {each.host_port: total for each, total in zip(run.scored, run.totals, strict=True)}
    return {SCORES_KEY: totals}
