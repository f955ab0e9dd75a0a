"""Bytes that say only that there is something to do are read together; none that comes later is lost."""

import asyncio
import socket

import grpc
import pytest
import uvloop

from tests.busy import PATIENCE_S, until
from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import TOKENIZER_FILES
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.boundary import merged_signals
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_many_signals_are_one_call(new_loop):
    """The callback reads one byte, as grpc's does, and finds all that were signalled before done."""

    async def run():
        loop = asyncio.get_running_loop()
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        calls = asyncio.Queue()

        def on_signal(name):
            reader.recv(1)
            calls.put_nowait(name)

        with reader, writer:
            with merged_signals(loop):
                loop.add_reader(reader, on_signal, "signalled")
            for num_signals in (1, 5, 3):
                writer.send(b"1" * num_signals)
                assert await calls.get() == "signalled"
                await asyncio.sleep(0.01)
                assert calls.empty()
            loop.remove_reader(reader)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_raises_is_called_again_for_what_it_left(new_loop):
    """As grpc's does at what ended for a loop that is closed: it handles nothing that ended after it."""

    async def run():
        loop = asyncio.get_running_loop()
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        ended, is_handled, errors = ["closed", "closed", "ours"], asyncio.Event(), []
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

        def on_signal():
            reader.recv(1)
            while ended:
                if ended.pop(0) == "closed":
                    raise RuntimeError("Event loop is closed")
                is_handled.set()

        with reader, writer:
            with merged_signals(loop):
                loop.add_reader(reader, on_signal)
            writer.send(b"1" * len(ended))
            await asyncio.wait_for(is_handled.wait(), PATIENCE_S)
            loop.remove_reader(reader)
        assert len(errors) == 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_others_are_registered_as_ever(new_loop):
    """What is no socket, and everything behind the block."""

    async def run():
        loop = asyncio.get_running_loop()
        reader, writer = socket.socketpair()
        calls = []
        with reader, writer:
            with merged_signals(loop):
                loop.add_reader(reader.fileno(), calls.append, 1)
            writer.send(b"123")
            await until(lambda: len(calls) > 1)  # nobody read a byte
            calls.clear()
            loop.add_reader(reader, lambda: calls.append(reader.recv(2)))
            await until(lambda: len(calls) > 1)
            assert calls == [b"12", b"3"]
            loop.remove_reader(reader)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_every_write_of_many_calls_ends(new_loop):
    """The server's own process: a signal that was taken for another would leave a call waiting for ever."""

    async def run():
        server = RpcServer(FakeEngine(), TOKENIZER_FILES, RpcOptions(port=0))
        port = await server.start()
        request = pb.GenerateRequest(
            tokenized=pb.TokenizedInput(input_ids=[5, 6]),
            sampling_params=pb.SamplingParams(max_tokens=20, ignore_eos=True),
            stream=True,
        )

        async def generate(stub):
            return [one async for one in stub.Generate(request)]

        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = VllmEngineStub(channel)
            answers = await asyncio.gather(*(generate(stub) for _ in range(32)))
        await server.stop()
        assert {answer[-1].WhichOneof("response") for answer in answers} == {"complete"}

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
