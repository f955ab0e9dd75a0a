"""Random walks of requests and calls through several engines, more and fewer of them, with a second tier and adapters.

The engines are on threads here, each with its loop, pool and tier; the group before them is the one that servers
have. Every request ends once; who was not aborted got all of its tokens; every token is what the weights say that were
served when it was said, with the adapter that was asked for; and in the end no engine holds a block.
"""

import asyncio
import gc
import itertools
from collections import Counter
from contextlib import AsyncExitStack, aclosing, suppress
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.busy import PATIENCE_S
from tests.model.adapters import write_adapter
from tests.property.test_weights_walk import Weights
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import WeftError
from weft.core.values.controls import PauseMode, SleepTag
from weft.core.values.types import LoRARequest, OutputKind, SamplingParams
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.engine_group import EngineGroup
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import read_tokenizer
from weft.engine.ipc.weight_files import WeightFiles
from weft.engine.start.configure import resolve
from weft.engine.weights.engine_model import EngineModel
from weft.engine.weights.weight_store import WeightStore

NUM_SETS, NUM_ADAPTERS = 3, 2
_LONG = ("update", "scale")
_PATIENCE_S = 0.2  # for a call that may wait for others
MODES = st.sampled_from([mode.value for mode in PauseMode])
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 14), st.integers(1, 10), st.integers(0, NUM_ADAPTERS)),
    st.tuples(st.just("add"), st.integers(1, 14), st.integers(1, 10), st.just(0)),
    st.tuples(st.just("abort"), st.integers(0, 20)),
    st.tuples(st.just("pause"), MODES, st.booleans()),
    st.tuples(st.just("resume")),
    st.tuples(st.just("sleep"), MODES),
    st.tuples(st.just("wake"), st.lists(st.sampled_from([tag.value for tag in SleepTag]))),
    st.tuples(st.just("reset"), st.booleans()),
    st.tuples(st.just("update"), st.integers(0, NUM_SETS - 1)),
    st.tuples(st.just("load"), st.integers(1, NUM_ADAPTERS)),
    st.tuples(st.just("unload"), st.integers(1, NUM_ADAPTERS)),
    st.tuples(st.just("scale"), st.integers(1, 3)),
    st.tuples(st.just("run"), st.integers(1, 5)),
)


class ThreadGroup(EngineGroup):
    """Its engines are threads, for there to be hundreds; what calls them is as it is."""

    checkpoint = None

    async def _start_all(self, ranks, config):
        for rank in ranks:
            own = config.of_rank(rank.number)
            store = WeightStore(self.controls.weights.current)
            model = await asyncio.to_thread(EngineModel.load, own, self.checkpoint, store=store)
            rank.client = await LocalClient._start(model, self._tokenizer, own, None)

    async def _end(self, rank):
        await super()._end(rank)
        rank.client = None
        gc.collect()  # what a process would have let go of with its end


async def begin(config, checkpoint, tokenizer):
    """A client with an engine."""
    client = DataParallelClient(config, tokenizer)
    group = client._group = ThreadGroup(config, tokenizer, None, client._use)
    client.controls = group.controls
    group.checkpoint, group.controls.weights = checkpoint, WeightFiles()
    await group._start_all(group.ranks, config)
    group._supervise_all(group.ranks)
    return client


class Oracle:
    """An engine for each set of weights, which is asked for one token at a time and remembers it."""

    def __init__(self, engines, adapters):
        self._engines, self._adapters = engines, adapters
        self._known = {}
        self._ids = itertools.count()

    async def next(self, number, adapter, token_ids):
        """The token that follows."""
        key = (number, adapter, *token_ids)
        if key not in self._known:
            engine = self._engines[number]
            [token] = await said(
                engine, token_ids, 1, f"o{next(self._ids)}", self._adapters[adapter]
            )
            self._known[key] = token
        return self._known[key]


async def said(engine, token_ids, max_tokens, request_id, adapter):
    """All tokens of an answer."""
    params = SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=max_tokens, output_kind=OutputKind.DELTA
    )
    prompt = {"prompt_token_ids": list(token_ids)}
    stream = engine.generate(prompt, params, request_id, lora_request=adapter)
    async with aclosing(stream) as outputs:
        return [token async for output in outputs for token in output.outputs[0].token_ids]


class Walk:
    """What was asked of a group, and what came."""

    def __init__(self, group, adapters, directory):
        self.group, self.adapters, self.directory = group, adapters, directory
        self.requests, self.calls = [], []
        self.sets = [0]  # that were served, in order
        self.aborted = set()
        self.num_done = Counter()
        self._updating = asyncio.Lock()

    async def play(self, steps):
        """Take all steps, then have all that waits go on."""
        for step in steps:
            await self._take(step)
            await asyncio.sleep(0)
        await self._end(self.calls)
        await self._end([task for *_, task in self.requests])

    async def _let_go_on(self):
        try:
            await self.group.wake_up()
            await self.group.resume_generation()
        except WeftError:  # a call that is still under way stands against it
            return

    async def _end(self, tasks):
        while any(not task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=_PATIENCE_S)
            await self._let_go_on()

    async def _take(self, step):
        match step:
            case ("add", num_prompt, max_tokens, adapter):
                prompt = [5 + (i * 3 + num_prompt % 3) % 7 for i in range(20 + num_prompt)]
                name = f"r{len(self.requests)}"
                work = said(self.group, prompt, max_tokens, name, self.adapters[adapter])
                task = asyncio.create_task(work)
                self.requests.append((name, prompt, max_tokens, adapter, len(self.sets) - 1, task))
            case ("abort", number):
                self.aborted.add(f"r{number}")
                await self.group.abort(f"r{number}")
            case ("run", turns):
                await asyncio.sleep(0.002 * turns)
            case _:
                self._count_aborts(step)
                call = asyncio.create_task(self._call(step))
                self.calls.append(call)
                if step[0] in _LONG:  # else the next step would mostly be against it
                    await asyncio.wait([call], timeout=_PATIENCE_S)

    def _count_aborts(self, step):
        # Those too that come before it has begun.
        if step[0] in ("pause", "sleep") and step[1] == PauseMode.ABORT:
            self.aborted |= {f"r{number}" for number in range(100)}

    async def _call(self, step):
        """What is refused changes nothing that the end would not show."""
        name, *given = step
        with suppress(WeftError):
            await getattr(self, f"_{name}")(*given)
            self.num_done[name] += 1

    async def _pause(self, mode, clear):
        await self.group.pause_generation(mode=mode, clear_cache=clear)

    async def _resume(self):
        await self.group.resume_generation()

    async def _sleep(self, mode):
        await self.group.sleep(1, mode)

    async def _wake(self, tags):
        await self.group.wake_up(tags)

    async def _reset(self, preempts):
        await self.group.reset_prefix_cache(preempts)

    async def _load(self, adapter):
        await self.group.add_lora(self.adapters[adapter])

    async def _unload(self, adapter):
        await self.group.remove_lora(adapter)

    async def _scale(self, size):
        await self.group.scale_elastic_ep(size, drain_timeout=PATIENCE_S)

    async def _update(self, number):
        async with self._updating:
            await self.group.pause_generation(mode="keep", clear_cache=False)
            await self.group.init_weight_transfer_engine(WeightTransferInitRequest())
            await self.group.start_weight_update()
            path = {"path": str(self.directory / str(number))}
            await self.group.update_weights(WeightTransferUpdateRequest(update_info=path))
            await self.group.finish_weight_update()
            self.sets.append(number)
            await self.group.resume_generation()


async def check(walk, oracle):
    """See the module."""
    for name, prompt, max_tokens, adapter, served, task in walk.requests:
        tokens = task.result()
        assert len(tokens) == max_tokens or name in walk.aborted
        place = served
        for count, token in enumerate(tokens):
            while await oracle.next(walk.sets[place], adapter, [*prompt, *tokens[:count]]) != token:
                place += 1
                assert place < len(walk.sets), f"{name}: {token} is of no weights that were served"
    assert walk.group.num_active_requests == 0
    assert await walk.group.reset_prefix_cache(), "a block is still held"
    assert {load.num_used_tokens for load in await walk.group.get_loads()} == {0}


def config_of(weights, **extra):
    """Of a group of up to three, with a pool of four blocks and a tier behind it."""
    options = EngineOptions(
        model=str(weights.directory / "0"),
        max_model_len=48,
        num_gpu_blocks_override=4,
        block_size=16,
        kv_offloading_size=0.001,
        enable_lora=True,
        max_loras=NUM_ADAPTERS,
        weight_transfer_config={"backend": "safetensors", "directory": str(weights.directory)},
        **extra,
    )
    return resolve(options, weights.checkpoints[0].card, 1 << 30)


@pytest.mark.slow
def test_a_walk_through_a_fleet_says_what_its_weights_say(tmp_path):
    """See the module."""
    with TemporaryDirectory() as directory:
        weights = Weights(directory)
        spec = weights.checkpoints[0].spec
        config = config_of(weights, num_threads=3, enable_elastic_ep=True)
        paths = [write_adapter(tmp_path / str(n), spec, seed=n) for n in range(1, NUM_ADAPTERS + 1)]
        adapters = [
            None,
            *(
                LoRARequest(lora_name=f"a{n}", lora_int_id=n, lora_path=str(path))
                for n, path in enumerate(paths, start=1)
            ),
        ]

        async def play(steps):
            async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
                group = await begin(config, weights.checkpoints[0], runner_tokenizer)
                stack.push_async_callback(end, group)
                walk = Walk(group, adapters, weights.directory)
                await walk.play(steps)
                await check(walk, oracle)
                done.update(walk.num_done)

        with asyncio.Runner() as runner:
            runner_tokenizer = runner.run(read_tokenizer(weights.checkpoints[0]))
            alone = config_of(weights, num_threads=1)
            engines = [runner.run(LocalClient.start(one, alone)) for one in weights.checkpoints]
            oracle, done = Oracle(engines, adapters), Counter()

            @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
            @given(st.lists(STEPS, min_size=10, max_size=60))
            def walk(steps):
                runner.run(play(steps))

            try:
                walk()
                assert all(done[name] for name in _LONG), "walks without would prove nothing"
            finally:
                for engine in engines:
                    runner.run(end(engine))


async def end(client):
    """Shut it down, and wait."""
    client.shutdown()
    await client.wait_closed()
