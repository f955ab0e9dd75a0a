"""The same over gRPC: a stream that survives the end of its server, at another one or at the same address.

weft serve --api-server-count 2
python examples/resuming_grpc.py 127.0.0.1:50051
"""

import argparse
import asyncio

from weft import SamplingParams
from weft.core.values.types import OutputKind
from weft.rpc.client import RpcClient
from weft.rpc.fleet import Fleet


async def connect(addresses: list[str]) -> Fleet | RpcClient:
    """With one address, requests wait for the server to be back; with several, an equal server continues them."""
    if len(addresses) == 1:
        return await RpcClient.connect(addresses[0], resumes=True)
    return await Fleet.connect(addresses)


async def main(addresses: list[str], prompt: str, max_tokens: int) -> None:
    client = await connect(addresses)
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=OutputKind.DELTA
    )
    async for output in client.generate(prompt, params, "request-1"):
        print(output.outputs[0].text, end="", flush=True)
    print()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("addresses", nargs="*", default=["127.0.0.1:50051"])
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max-tokens", type=int, default=400)
    args = parser.parse_args()
    asyncio.run(main(args.addresses, args.prompt, args.max_tokens))
