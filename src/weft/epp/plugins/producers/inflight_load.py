"""`inflight-load-producer`: number of running requests and of their prompt tokens at each endpoint."""

from dataclasses import dataclass

from weft.epp.config.parameters import Count, Kind, NotNegative, Parameters
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import (
    INFLIGHT,
    TOKENS,
    PrefixProducer,
    Producer,
    Surroundings,
    plugin,
)
from weft.epp.metrics.rows import Rows
from weft.epp.pool.endpoint import Endpoint


class InflightParameters(Parameters, frozen=True, kw_only=True):
    """Whether estimated output tokens are added, and the producer whose cached prefixes are subtracted."""

    needs = (TOKENS,)
    add_estimated_output_tokens: bool = False
    output_ratio: NotNegative = 1.5  # estimated generated tokens per prompt token
    max_estimated_output_tokens: Count | None = None
    prefix_match_info_producer_name: PrefixProducer | None = None
    sync_cross_replica_state: bool = False

    def __post_init__(self) -> None:
        if self.sync_cross_replica_state:
            raise ValueError("syncCrossReplicaState is refused: pickers share no state")


@dataclass(slots=True)
class _Share:
    """The load that one request adds to one endpoint."""

    endpoint: Endpoint
    num_tokens: int
    labels: tuple[str, ...]


@plugin(INFLIGHT, Kind.PRODUCER, InflightParameters)
class InflightLoad(Producer):
    """Counts a request and its tokens at the decision; subtracts its tokens at the first token, and the request at its
    end.
    """

    def __init__(self, parameters: InflightParameters, surroundings: Surroundings) -> None:
        self._parameters = parameters
        self._name = surroundings.name
        self._fairness_ids = surroundings.metrics.fairness_ids
        # By label values; rows of zeros are removed.
        self._rows: dict[tuple[str, ...], tuple[int, int]] = {}
        self._requests = Rows(surroundings.metrics.inflight_requests)
        self._tokens = Rows(surroundings.metrics.inflight_tokens)
        surroundings.metrics.before_text(self._publish)
        self._num_requests: dict[Endpoint, int] = {}
        self._num_tokens: dict[Endpoint, int] = {}
        self._shares: dict[int, list[_Share]] = {}  # by ticket id
        surroundings.pool.on_left(self._forget)

    def num_requests(self, endpoint: Endpoint) -> int:
        """Returns the number of running requests at the endpoint."""
        return self._num_requests.get(endpoint, 0)

    def num_tokens(self, endpoint: Endpoint) -> int:
        """Returns the number of uncached prompt tokens of running requests at the endpoint."""
        return self._num_tokens.get(endpoint, 0)

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Counts the request at once, before the next decision."""
        shares = []
        for endpoint in {picks[0]: None for picks in schedule.picks.values() if picks}:
            num_tokens = self._cost(cycle, endpoint)
            labels = (
                endpoint.spec.name, endpoint.spec.namespace, self._name,
                self._fairness_ids(cycle.fairness_id), str(cycle.priority),
            )  # fmt: skip
            shares.append(_Share(endpoint, num_tokens, labels))
            self._change(shares[-1], num_requests=1, num_tokens=num_tokens)
        self._shares[cycle.ticket_id] = shares

    def first_token(self, ticket_id: int) -> None:
        """Subtracts the prompt tokens of a request: its prompt is computed."""
        for share in self._shares.get(ticket_id, ()):
            self._change(share, num_requests=0, num_tokens=-share.num_tokens)
            share.num_tokens = 0

    def ended(self, ticket_id: int) -> None:
        """Removes a finished request from the counts."""
        for share in self._shares.pop(ticket_id, ()):
            self._change(share, num_requests=-1, num_tokens=-share.num_tokens)

    def _cost(self, cycle: Cycle, endpoint: Endpoint) -> int:
        parameters = self._parameters
        producer = parameters.prefix_match_info_producer_name
        if producer is None:
            # The producer whose prefixes a scorer uses serves this estimate too.
            producer = next(iter(cycle.prefixes), "")
        num_tokens = cycle.num_uncached_tokens(endpoint, producer)
        if not parameters.add_estimated_output_tokens:
            return num_tokens
        estimate = int(cycle.num_prompt_tokens * parameters.output_ratio)
        caps = (parameters.max_estimated_output_tokens, cycle.request.max_tokens)
        return num_tokens + min([estimate, *(cap for cap in caps if cap is not None)])

    def _change(self, share: _Share, *, num_requests: int, num_tokens: int) -> None:
        endpoint = share.endpoint
        before = self._rows.pop(share.labels, (0, 0))
        row = (before[0] + num_requests, before[1] + num_tokens)
        if any(row):
            self._rows[share.labels] = row
        if endpoint in self._num_requests or num_requests > 0:
            requests = self._num_requests.get(endpoint, 0) + num_requests
            self._num_requests[endpoint] = max(0, requests)
            self._num_tokens[endpoint] = max(0, self._num_tokens.get(endpoint, 0) + num_tokens)

    def _publish(self) -> None:
        """Updates the gauges of in-flight load. Their number is limited, because clients choose the names of flows, and
        endpoints join and leave.
        """
        self._requests.show(
            {labels: num_requests for labels, (num_requests, _) in self._rows.items()}
        )
        self._tokens.show({labels: num_tokens for labels, (_, num_tokens) in self._rows.items()})

    def _forget(self, endpoint: Endpoint) -> None:
        self._num_requests.pop(endpoint, None)
        self._num_tokens.pop(endpoint, None)
