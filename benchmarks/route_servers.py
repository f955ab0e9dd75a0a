"""Model servers that cost next to nothing: many addresses, one process; metrics and streamed chats."""

import asyncio

METRICS = b"""\
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 0.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="30000"} 1.0
"""
EVENTS = [
    b'data: {"choices":[{"delta":{"content":"word %d"}}]}\n\n' % number for number in range(100)
]


async def serve() -> None:
    """Listens on all addresses of this machine, says on which port, and serves until it is killed."""
    server = await asyncio.start_server(_connection, "0.0.0.0", 0, backlog=4096)  # noqa: S104 - all of 127.1
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await _read_body(reader, head)
            if head.startswith(b"get /metrics"):
                writer.write(_whole(METRICS))
            elif head.startswith(b"get"):
                writer.write(_whole(b"{}"))
            else:
                await _stream(writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _stream(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    for event in EVENTS:
        if writer.is_closing():
            raise ConnectionResetError
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
    writer.write(b"0\r\n\r\n")


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body), body,
    )  # fmt: skip


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> None:
    if b"content-length:" in head:
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
    elif b"transfer-encoding: chunked" in head:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)


if __name__ == "__main__":
    asyncio.run(serve())
