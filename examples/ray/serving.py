"""A model behind Ray Serve, which starts more replicas as requests queue up.

    pip install weft "ray[serve]"
    python examples/ray/serving.py
    curl localhost:8000 -H 'content-type: application/json' -d '{"prompt": "The capital of France is"}'

With an API of OpenAI's, several servers and a picker of its own, `weft up` does this without Ray.
"""

import argparse
import itertools
from contextlib import aclosing
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from weft import AsyncLLM, SamplingParams
from weft.core.values.types import OutputKind

# What a replica has open is in one engine, which computes it together.
OPEN_REQUESTS = 8


@serve.deployment(
    max_ongoing_requests=4 * OPEN_REQUESTS,
    autoscaling_config={
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": OPEN_REQUESTS,
    },
)
class Completions:
    """A replica: an engine, and the requests that Ray brings it."""

    async def __init__(self, model: str, num_threads: int) -> None:
        self._request_ids = itertools.count()
        self._llm = AsyncLLM(model, num_threads=num_threads)  # kept: its engine ends with it
        self._engine = await self._llm.__aenter__()

    async def check_health(self) -> None:
        """What Ray asks from time to time; an error has the replica replaced."""
        await self._engine.check_health()

    async def __call__(self, request: Request) -> Response:
        try:
            return JSONResponse({"text": await self._answer(await request.json())})
        except (KeyError, ValueError) as error:  # of JSON, of a field, of what the engine refuses
            return JSONResponse({"error": str(error)}, status_code=400)

    async def _answer(self, body: dict[str, Any]) -> str:
        params = SamplingParams(
            max_tokens=body.get("max_tokens", 16),
            temperature=body.get("temperature", 0.0),
            output_kind=OutputKind.FINAL_ONLY,
        )
        request_id = str(next(self._request_ids))
        # Closed where the caller leaves, so that nothing is computed for nobody.
        async with aclosing(self._engine.generate(body["prompt"], params, request_id)) as outputs:
            output = await anext(outputs)
        return output.outputs[0].text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="embedded:tiny")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    serve.start(http_options={"host": args.host, "port": args.port})
    replicas = Completions.options(ray_actor_options={"num_cpus": args.threads})
    serve.run(replicas.bind(args.model, args.threads), blocking=True)


if __name__ == "__main__":
    main()
