"""Two engines, of which one computes prompts and the other continues them: the answers of one engine alone."""

import random
import socket
import threading
from contextlib import contextmanager
from functools import partial

import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.engine_thread import EngineThread
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.stepping import make_config, make_request
from tests.doubles.transfers import WITH_SECRET, transfer
from tests.engine.test_offloading import (
    MODEL,
    MODELS,
    adapter,
    every_third,
    greedy,
    mixed,
    threads_of,
)
from weft import LLM
from weft.core.errors import GenerationError, Overloaded
from weft.core.observe.stats import TransferStats
from weft.core.values.kv_transfer import KEY, KvConnector, KvRole
from weft.core.values.types import FinishReason, LoRARequest, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.ipc.messages import Abort, Add, Ping, ResetPrefixCache, StepOutput
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer


@pytest.fixture(params=list(KvConnector))
def connector(request) -> KvConnector:
    return request.param


def options(role: str, connector: KvConnector = KvConnector.TCP, model: str = MODEL, **more):
    """Of an engine on a port that is free."""
    config = {"kv_connector": connector.value, "kv_role": role, **WITH_SECRET, **more}
    return {
        "max_model_len": 256,
        "num_threads": threads_of(model),
        "kv_transfer_config": config,
    }


def with_args(params: SamplingParams, args: dict, **changes) -> SamplingParams:
    return msgspec.structs.replace(params, extra_args={KEY: args}, **changes)


def prefill(producer: LLM, prompt, params: SamplingParams, lora: LoRARequest | None = None):
    """What a router sends to the engine that computes the prompt, and what it gets for the other one."""
    once = with_args(
        params, {"do_remote_decode": True}, n=1, max_tokens=1, min_tokens=0, prompt_logprobs=None
    )
    [output] = producer.generate(prompt, once, use_tqdm=False, lora_request=lora)
    return output.kv_transfer_params


def answers_of(outputs):
    return [(a.token_ids, a.logprobs, o.prompt_logprobs) for o in outputs for a in o.outputs]


def run_apart(producer: LLM, consumer: LLM, prompts, params, reach=lambda found: found, loras=None):
    """All requests, their prompts computed by the one and continued by the other."""
    given = zip(prompts, params, loras or [None] * len(prompts), strict=True)
    told = [prefill(producer, *one) for one in given]
    sent = [
        s if found is None else with_args(s, reach(found))
        for s, found in zip(params, told, strict=True)
    ]
    return consumer.generate(prompts, sent, use_tqdm=False, lora_request=loras)


def alone(prompts, params, loras=None, model=MODEL):
    fixed = {"max_model_len": 256, "num_threads": threads_of(model)}
    with LLM(model, **fixed, enable_lora=loras is not None) as llm:
        return answers_of(llm.generate(prompts, params, use_tqdm=False, lora_request=loras))


@pytest.mark.slow
def test_64_mixed_requests_are_the_same_bits_as_one_engine_alone(connector, tmp_path):
    """Seeds, several answers, log-probabilities, grammars, penalties, adapters, in a pool that holds three."""
    prompts, params = mixed(64)
    loras = every_third(adapter(tmp_path), 64)
    both = {"enable_lora": True, **options("kv_both", connector)}
    with (
        LLM(MODEL, **both) as producer,
        LLM(MODEL, num_gpu_blocks_override=30, **both) as consumer,
    ):
        outputs = run_apart(producer, consumer, prompts, params, loras=loras)
    assert answers_of(outputs) == alone(prompts, params, loras)
    assert sum(output.num_cached_tokens for output in outputs) > 20 * 96


@MODELS
def test_what_one_computed_the_other_continues(connector, model):
    """Without computing more of the prompt than its last block; and nothing is lent when that is done."""
    prompts, params = mixed(3)
    with (
        LLM(model, **options("kv_producer", connector, model)) as producer,
        LLM(model, **options("kv_consumer", connector, model)) as consumer,
    ):
        outputs = run_apart(producer, consumer, prompts, params)
        found = [output.num_cached_tokens for output in outputs]
    assert answers_of(outputs) == alone(prompts, params, model=model)
    assert found == [len(p["prompt_token_ids"]) // 16 * 16 for p in prompts]


class Cutting:
    """A way to a port that is cut for ever after so many bytes from there."""

    def __init__(self, port: int, num_bytes: int) -> None:
        self._target = port
        self._left = num_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # that engine has ended
                near.close()
                continue
            threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_counted: bool) -> None:
        with source, sink:
            try:
                while data := source.recv(4096):
                    if is_counted:
                        data, self._left = data[: self._left], max(0, self._left - len(data))
                    if not data:
                        return
                    sink.sendall(data)
            except OSError:
                return
            finally:
                for each in (source, sink):
                    try:
                        each.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass

    def close(self) -> None:
        self._listener.close()


@pytest.mark.slow
def test_a_connection_cut_anywhere_costs_time_and_nothing_else():
    """At 20 points, in the handshake and between and inside blocks: the prompt is computed here."""
    prompts, params = mixed(20)
    draw = random.Random(3)
    cuts = [draw.randrange(400) for _ in range(8)] + [draw.randrange(60_000) for _ in range(12)]
    with (
        LLM(MODEL, **options("kv_producer")) as producer,
        LLM(MODEL, **options("kv_consumer")) as consumer,
    ):
        ways = []

        def reach(found):
            ways.append(Cutting(found["remote_port"], cuts[len(ways)]))
            return {**found, "remote_port": ways[-1].port}

        outputs = run_apart(producer, consumer, prompts, params, reach)
        for way in ways:
            way.close()
    assert answers_of(outputs) == alone(prompts, params)


@pytest.mark.parametrize(
    ("policy", "error"),
    [("recompute", None), ("fail", "the prompt's KV could not be fetched")],
)
def test_a_producer_that_has_ended_is_an_error_only_where_that_is_wanted(connector, policy, error):
    """By default the prompt is computed by who continues it."""
    prompts, params = mixed(1)
    with LLM(MODEL, **options("kv_producer", connector)) as producer:
        found = prefill(producer, prompts[0], params[0])
    with LLM(MODEL, **options("kv_consumer", connector, kv_load_failure_policy=policy)) as consumer:
        sent = with_args(params[0], found)
        if error is None:
            assert answers_of(consumer.generate(prompts, [sent], use_tqdm=False)) == alone(
                prompts, params
            )
        else:
            with pytest.raises(GenerationError, match=error):
                consumer.generate(prompts, [sent], use_tqdm=False)
        assert answers_of(consumer.generate(prompts, params, use_tqdm=False)) == alone(
            prompts, params
        )


# -- engines with a runner whose every token depends on all blocks before it ----------------------


@contextmanager
def run_engine(
    role: KvRole,
    num_blocks: int = 16,
    runner: FakeRunner | None = None,
    budget: int = 64,
    **changes,
):
    """`budget`: tokens of a step."""
    config = make_config(num_blocks=num_blocks, max_model_len=40, max_num_batched_tokens=budget)
    config = msgspec.structs.replace(config, kv_transfer_config=transfer(role, **changes))
    with EngineThread(runner or FakeRunner(), config) as running:
        yield running


@pytest.fixture
def engine(connector):
    """Runs one of a role, with that connector, as a context."""
    return partial(run_engine, connector=connector)


def ask(running: EngineThread, request_id: str, prompt, num_tokens: int, args=None):
    """All outputs of a request, one after the other."""
    params = SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=num_tokens, extra_args=args and {KEY: args}
    )
    running.send(Add(make_request(request_id, prompt, params)))
    outputs = []

    def is_last(event):
        mine = [o for o in getattr(event, "outputs", ()) if o.engine_id == request_id]
        outputs.extend(mine)
        return any(o.finish_reason for o in mine)

    running.until(is_last)
    return outputs


def tokens_of(outputs):
    return [token_id for output in outputs for token_id in output.token_ids]


def num_held(running: EngineThread) -> int:
    running.send(Ping(7))
    return running.until(lambda event: getattr(event, "call_id", None) == 7)[
        -1
    ].load.num_held_blocks


def wait_for_held(running: EngineThread, count: int) -> None:
    """Until so many blocks are held: a release is on its way."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if num_held(running) == count:
            return
        pause.wait(0.01)
    raise AssertionError(f"{num_held(running)} blocks are held, not {count}")


def open_tokenizer() -> Tokenizer:
    return Tokenizer.from_files(open_model("embedded:random?vocab=300").tokenizer_files)


LEND = {"do_remote_decode": True}


def test_blocks_are_lent_until_they_are_fetched(engine):
    """Four of them, of a prompt of 18 tokens; then nobody holds any."""
    prompt = [*range(5, 23)]
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        [lent] = ask(producer, "p", prompt, 1, LEND)
        assert num_held(producer) == 4
        outputs = ask(consumer, "d", prompt, 6, lent.kv_transfer_params)
        assert tokens_of(outputs) == greedy(prompt, 6)
        assert outputs[-1].num_cached_tokens == 16
        wait_for_held(producer, 0)
        assert num_held(consumer) == 0


def test_a_lease_runs_out(engine):
    """Nobody came for it."""
    with engine(KvRole.PRODUCER, lease_s=0.05) as producer:
        ask(producer, "p", [*range(5, 23)], 1, LEND)
        wait_for_held(producer, 0)


def test_a_request_that_is_aborted_before_it_fetched_releases_its_blocks(engine):
    """It waits behind one that has the whole pool."""
    prompt = [*range(5, 23)]
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER, num_blocks=5) as consumer:
        [lent] = ask(producer, "p", prompt, 1, LEND)
        long = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1)
        consumer.send(Add(make_request("x", prompt, msgspec.structs.replace(long, max_tokens=2))))
        args = {KEY: lent.kv_transfer_params}
        waiting = msgspec.structs.replace(long, extra_args=args)
        consumer.send(Add(make_request("d", prompt[:-1], waiting)), Abort(["d"]))
        wait_for_held(producer, 0)


async def test_a_request_that_is_refused_releases_its_blocks(engine, connector):
    """By the server before the engine knows of it, or by the engine's front, whose queue is full."""
    prompt = [*range(5, 23)]
    config = msgspec.structs.replace(
        make_config(), kv_transfer_config=transfer(KvRole.CONSUMER, connector=connector)
    )
    full = msgspec.structs.replace(config.scheduler_config, max_num_queued_reqs=0)
    config = msgspec.structs.replace(config, scheduler_config=full)
    with engine(KvRole.PRODUCER) as producer:
        client = await LocalClient.start_with(FakeRunner(), open_tokenizer(), config)
        [lent] = ask(producer, "p", prompt, 1, LEND)
        await client.notify_kv_transfer_request_rejected("d", lent.kv_transfer_params)
        wait_for_held(producer, 0)
        [lent] = ask(producer, "q", prompt, 1, LEND)
        args = {KEY: lent.kv_transfer_params}
        with pytest.raises(Overloaded):
            async for _ in client.run(make_request("d", prompt, SamplingParams(extra_args=args))):
                pass
        wait_for_held(producer, 0)
        client.shutdown()
        await client.wait_closed()


def test_a_prompt_that_is_there_already_releases_its_blocks(engine):
    """Nothing is fetched then."""
    prompt = [*range(5, 22)]
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        ask(consumer, "first", prompt, 1)
        [lent] = ask(producer, "p", prompt, 1, LEND)
        assert tokens_of(ask(consumer, "d", prompt, 4, lent.kv_transfer_params)) == greedy(
            prompt, 4
        )
        wait_for_held(producer, 0)


def test_leases_end_early_for_requests_that_need_the_room(engine):
    """The oldest first; what was lent is computed by who wanted it."""
    prompts = [[start, *range(5, 21)] for start in (3, 4, 5, 6)]
    with engine(KvRole.PRODUCER, num_blocks=12) as producer, engine(KvRole.CONSUMER) as consumer:
        lent = [
            ask(producer, f"p{i}", p, 1, LEND)[0].kv_transfer_params for i, p in enumerate(prompts)
        ]
        outputs = [ask(consumer, f"d{i}", p, 3, lent[i]) for i, p in enumerate(prompts)]
        wait_for_held(producer, 0)
    assert [tokens_of(each) for each in outputs] == [greedy(p, 3) for p in prompts]
    assert [each[-1].num_cached_tokens for each in outputs] == [0, 0, 16, 16]


def test_a_reset_takes_back_what_is_lent(engine):
    """Blocks of before are given to nobody."""
    prompt = [*range(5, 23)]
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        [lent] = ask(producer, "p", prompt, 1, LEND)
        producer.send(ResetPrefixCache(3, True))
        assert num_held(producer) == 0
        outputs = ask(consumer, "d", prompt, 3, lent.kv_transfer_params)
        assert (tokens_of(outputs), outputs[-1].num_cached_tokens) == (greedy(prompt, 3), 0)


def test_another_prompt_gets_nothing_of_a_lease(engine):
    """Who knows the ids of blocks does not get them without their tokens."""
    prompt = [*range(5, 23)]
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        [lent] = ask(producer, "p", prompt, 1, LEND)
        other = [9, *prompt[1:]]
        outputs = ask(consumer, "d", other, 3, lent.kv_transfer_params)
        assert (tokens_of(outputs), outputs[-1].num_cached_tokens) == (greedy(other, 3), 0)


def watch_transfers(running: EngineThread, is_last) -> list[TransferStats]:
    """What it reports after small requests, up to a report that is the last."""
    found: list[TransferStats] = []
    for number in range(int(PATIENCE_S / 0.01)):
        request = make_request(f"w{number}", [4], SamplingParams(max_tokens=1))
        running.send(Add(request))
        events = running.until(
            lambda event: any(o.finish_reason for o in getattr(event, "outputs", ()))
        )
        # Each report is of what came since the one before: none may be passed over.
        for stats in (e.stats.transfer for e in events if isinstance(e, StepOutput)):
            found.append(stats)
            if is_last(stats):
                return found
    raise AssertionError(f"that is not reported: {found[-1]}")


def test_both_sides_count_what_moved_and_what_did_not(engine):
    """Four blocks of a prompt; then one that is lent no more, of an engine that has ended."""
    prompt = [*range(5, 23)]
    runner = FakeRunner()
    with engine(KvRole.CONSUMER) as consumer:
        with engine(KvRole.PRODUCER, runner=runner) as producer:
            [lent] = ask(producer, "p", prompt, 1, LEND)
            params = SamplingParams(max_tokens=1, extra_args={KEY: lent.kv_transfer_params})
            consumer.send(Add(make_request("d", prompt, params)))
            [seen] = {
                (num_bytes, num_blocks)
                for stats in watch_transfers(consumer, lambda stats: stats.received)
                for _, num_bytes, num_blocks in stats.received
            }
            assert seen == (4 * runner.read_block(0).nbytes, 4)
            wait_for_held(producer, 0)
            *_, sent = watch_transfers(producer, lambda stats: stats.num_sent_blocks == 4)
            assert sent.num_sent_bytes == seen[0]
            assert (sent.num_failed_sends, sent.num_expired, sent.received) == (0, 0, [])
            ask(consumer, "f", [3, *prompt], 1, lent.kv_transfer_params)
            watch_transfers(producer, lambda stats: stats.num_failed_sends == 1)
        ask(consumer, "e", [6, *prompt], 1, lent.kv_transfer_params)
        *_, failed = watch_transfers(consumer, lambda stats: stats.num_failed_releases > 0)
        assert failed.num_failed_receives == 2


def test_a_lease_that_runs_out_is_counted(engine):
    """It is too short, or its router has gone."""
    with engine(KvRole.PRODUCER, lease_s=0.05) as producer:
        ask(producer, "p", [*range(5, 23)], 1, LEND)
        wait_for_held(producer, 0)
        *_, stats = watch_transfers(producer, lambda stats: stats.num_expired == 1)
        assert stats.num_sent_blocks == 0


class OtherLayout(FakeRunner):
    kv_layout = "other"


def test_engines_whose_blocks_mean_something_else_do_not_exchange_any(engine):
    """The layout is a part of the handshake."""
    prompt = [*range(5, 23)]
    with (
        engine(KvRole.PRODUCER) as producer,
        engine(KvRole.CONSUMER, runner=OtherLayout()) as consumer,
    ):
        [lent] = ask(producer, "p", prompt, 1, LEND)
        outputs = ask(consumer, "d", prompt, 3, lent.kv_transfer_params)
        assert (tokens_of(outputs), outputs[-1].num_cached_tokens) == (greedy(prompt, 3), 0)


def test_another_engine_at_that_port_is_not_believed(engine):
    """It was started again, and has other leases."""
    prompt = [*range(5, 23)]
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        [lent] = ask(producer, "p", prompt, 1, LEND)
        args = {**lent.kv_transfer_params, "remote_engine_id": "before"}
        outputs = ask(consumer, "d", prompt, 3, args)
        assert (tokens_of(outputs), outputs[-1].num_cached_tokens) == (greedy(prompt, 3), 0)


@pytest.mark.parametrize("seed", range(3))
def test_requests_aborts_and_resets_at_random_end_once_right_and_without_a_leak(engine, seed):
    """On both sides, in pools that are too small for all of it."""
    draw = random.Random(seed)
    beginnings = [[draw.randrange(3, 60) for _ in range(16)] for _ in range(4)]
    with (
        engine(KvRole.BOTH, num_blocks=14) as producer,
        engine(KvRole.BOTH, num_blocks=12) as consumer,
    ):
        wanted, tokens, reasons, aborted = {}, {}, {}, set()
        for number in range(40):
            prompt = [*draw.choice(beginnings)[: draw.randrange(4, 17)], number + 3]
            [lent] = ask(producer, f"p{number}", prompt, 1, LEND)
            params = SamplingParams(
                temperature=0.0,
                ignore_eos=True,
                max_tokens=draw.randrange(1, 9),
                extra_args=lent.kv_transfer_params and {KEY: lent.kv_transfer_params},
            )
            wanted[f"d{number}"] = greedy(prompt, params.max_tokens)
            consumer.send(Add(make_request(f"d{number}", prompt, params)))
            if not draw.randrange(6):
                aborted.add(f"d{draw.randrange(number + 1)}")
                consumer.send(Abort([max(aborted)]))
            if not draw.randrange(12):
                draw.choice((producer, consumer)).send(ResetPrefixCache(number, True))

        def take(event):
            for output in event.outputs if isinstance(event, StepOutput) else ():
                tokens.setdefault(output.engine_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    reasons.setdefault(output.engine_id, []).append(output.finish_reason)
            return len(reasons) == len(wanted)

        consumer.until(take)
        for running in (producer, consumer):
            wait_for_held(running, 0)
    assert all(len(each) == 1 for each in reasons.values())
    for request_id, expected in wanted.items():
        got = tokens.get(request_id, [])
        assert got == expected[: len(got)]
        assert len(got) == len(expected) or reasons[request_id] == [FinishReason.ABORT]
