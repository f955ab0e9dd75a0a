"""Mixed streams while everything that can end does so at random moments: `python -m tests.soak.failover`.

The streams are divided between four sites: a server with engines and a node, a server with several API servers,
workers behind a gateway, and the workers of `weft up`. Each answer must be that of an undisturbed run.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tests.soak import api_servers, kills, up, workers
from tests.soak.kills import Plan

# By name: the ways in which processes of a site end, its engines and its nodes, and the function that runs it.
SITES: dict[str, tuple[Sequence[str], int, int, Callable[[Plan], Awaitable[str]]]] = {
    "nodes": (kills.WAYS, 2, 1, kills.soak),
    "API servers": (api_servers.WAYS, 2, 0, api_servers.soak_api_servers),
    "gateway": (workers.WAYS, 0, 3, workers.roll),
    "up": (up.WAYS, 0, 3, up.soak_up),
}


async def run_site(name: str, plan: Plan) -> str:
    """Run one site; `ways` of the plan may be empty for all."""
    ways, local, nodes, run = SITES[name]
    plan = replace(plan, ways=plan.ways or ways)
    if not plan.local and not plan.nodes:
        plan = replace(plan, local=local, nodes=nodes)
    return await run(plan)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", nargs="+", choices=SITES, default=list(SITES))
    parser.add_argument("--streams", type=int, default=2000, help="of all sites together")
    parser.add_argument("--ends", type=int, default=24, help="of all sites together")
    parser.add_argument("--ways", nargs="+", default=[], help="of one site")
    parser.add_argument("--local", type=int, default=0, help="engines of the server")
    parser.add_argument("--nodes", type=int, default=0, help="nodes, or workers of the gateway")
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    num_sites = len(given.sites)
    for name in given.sites:
        plan = Plan(
            streams=-(-given.streams // num_sites),
            ends=-(-given.ends // num_sites),
            ways=given.ways,
            local=given.local,
            nodes=given.nodes,
            in_turn=given.in_turn,
            seed=given.seed,
        )
        print(f"{name}:\n{asyncio.run(run_site(name, plan))}", flush=True)


if __name__ == "__main__":
    main()
