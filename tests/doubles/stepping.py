"""`SteppingEngine`: scheduler, runner and sampler without threads, one step at a time."""

from dataclasses import dataclass, field

from tests.doubles.async_device import AsyncRunner, AsyncSampler
from tests.doubles.fake_runner import FakeRunner
from weft.compute.native import NativeSampler
from weft.compute.protocols.runner import Runner
from weft.core.config.engine import ComputeConfig, EngineConfig, ModelConfig, SchedulerConfig
from weft.core.values.kv_cache import CacheConfig
from weft.core.values.types import (
    FinishReason,
    LogprobRow,
    LoRARequest,
    PoolingKind,
    PoolingParams,
    Request,
    SamplingParams,
    SequenceOutput,
)
from weft.engine.constraints.grammar import Grammar, GrammarFailed, GrammarVocabulary, build
from weft.engine.kv.kv_tier import KvTier
from weft.engine.offloading import Elsewhere, Offloading
from weft.engine.scheduling.blocks.lent_blocks import Lender
from weft.engine.scheduling.drafter import NgramDrafter
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.step.step_forward import ModelForward
from weft.engine.step.step_sampler import StepSampler
from weft.engine.step.steps import StepParts, open_steps

EOS = 1


@dataclass
class Answer:
    """All that the engine emitted of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobRow] = field(default_factory=list)
    prompt_logprobs: list[LogprobRow] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    num_endings: int = 0
    pooled: bytes | None = None

    def take(self, output: SequenceOutput) -> None:
        """Add one step's output."""
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or []
        if output.prompt_logprobs is not None:
            assert not self.token_ids[1:], "prompt log-probabilities came behind the first token"
            self.prompt_logprobs = [*(self.prompt_logprobs or ()), *output.prompt_logprobs]
        self.num_cached_tokens = output.num_cached_tokens
        self.pooled = output.pooled
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
            self.error = output.error
            self.num_endings += 1


class SteppingEngine:
    """Steps when told to. `answers[request id][index]` holds what came out."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tier: KvTier | None = None,
        lender: Lender | None = None,
    ) -> None:
        is_async = isinstance(runner, AsyncRunner)
        self.config = config
        self.runner = runner
        elsewhere = None if tier is None else Elsewhere(tier, None, lender)
        self.scheduler = Scheduler(
            config.scheduler_config,
            config.cache_config,
            config.model_config.max_model_len,
            tier=elsewhere,
        )
        if config.tower_config is not None:
            self.scheduler.take_tower(config.tower_config)
        speculation = config.scheduler_config.speculation
        if speculation is not None and speculation.draft is None:
            self.scheduler.draft_by(NgramDrafter(speculation))
        self.tier = tier
        self.offloading = None if elsewhere is None else Offloading(elsewhere, self.scheduler)
        self.answers: dict[str, list[Answer]] = {}
        self.vocabulary: GrammarVocabulary | None = None  # set by tests that use grammars
        sampler = StepSampler(
            AsyncSampler(runner.stream) if is_async else NativeSampler(),
            config.model_config.logprobs_mode,
        )
        self._committed: Plan | None = None
        self.parts = StepParts(
            self.scheduler, sampler, lambda _plan: None, self._follow_plan, self._count, self._take
        )
        forward = ModelForward(self, config.cache_config.block_size, config.tower_config)
        self.steps = open_steps(self.parts, self, forward)
        cache = config.cache_config
        runner.allocate_kv(
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            num_state_slots=cache.num_state_slots,
        )

    @property
    def pool(self):
        """The block pool."""
        return self.scheduler.cache.pool

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        *,
        salt=None,
        lora=None,
        priority=0,
        grammar=None,
        reasoning=None,
        is_grammar_late=False,
        bad_token_ids=(),
        eos_token_ids=(EOS, 2),
        items=(),
        resumption=None,
        **params,
    ) -> None:
        """Queue a request."""
        sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})
        adapter = lora and LoRARequest(lora_name=lora, lora_int_id=1, lora_path="/nowhere")
        request = make_request(
            request_id,
            prompt,
            sampling,
            cache_salt=salt,
            lora_request=adapter,
            priority=priority,
            grammar=grammar,
            reasoning=reasoning,
            bad_token_ids=list(bad_token_ids),
            eos_token_ids=eos_token_ids,
            items=list(items),
            resumption=resumption,
        )
        self.scheduler.add(request)
        self.answers[request_id] = [Answer() for _ in range(sampling.n)]
        if (grammar or reasoning) and not is_grammar_late:
            self.attach(request_id, self.made(grammar))

    def submit_pooling(
        self,
        request_id: str,
        prompt: list[int],
        kind: PoolingKind,
        *,
        salt=None,
        priority=0,
        **params,
    ) -> None:
        """Queue a request whose hidden states are wanted."""
        request = make_request(
            request_id,
            prompt,
            SamplingParams(max_tokens=1),
            cache_salt=salt,
            priority=priority,
            pooling=PoolingParams(**params),
            pooling_kind=kind,
        )
        self.scheduler.add(request)
        self.answers[request_id] = [Answer()]

    def attach(self, request_id: str, made: Grammar | str) -> None:
        """Give a request its grammar, or the reason why there is none."""
        self._take(self.scheduler.attach_grammar(request_id, made))

    def made(self, grammar: str | None) -> Grammar | str:
        """The grammar, or why there is none; of None, the vocabulary alone."""
        try:
            matcher = None if grammar is None else build(self.vocabulary, grammar)
            return Grammar(matcher, self.vocabulary)
        except GrammarFailed as failure:
            return str(failure)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request or one answer."""
        self._take(self.scheduler.abort(request_id, index))

    def step(self) -> Plan | None:
        """Run one step, or what there is of two on a runner that is asynchronous; the plan that was committed."""
        self._committed = None
        self._take(self.steps.turn())
        return self._committed

    def drain(self) -> None:
        """Commit the step in flight."""
        self._take(self.steps.drain())

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left; fails if that does not come."""
        for _ in range(max_steps):
            if not (self.scheduler.has_work or self.steps.is_in_flight):
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def finish(self, request_id: str, prompt: list[int], **options) -> Answer:
        """Queue a request and step until nothing is left; its first answer."""
        self.submit(request_id, prompt, **options)
        self.run()
        return self.answers[request_id][0]

    def _follow_plan(self) -> None:
        if self.offloading is not None:
            self.offloading.follow_plan(self.runner)

    def _count(self, plan: Plan, _outputs: list[SequenceOutput]) -> None:
        self._committed = plan

    def _take(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            self.answers[output.engine_id][output.index].take(output)


def make_request(
    request_id: str, prompt: list[int], params: SamplingParams | None = None, /, **fields
) -> Request:
    """A request as the front would make it; `fields` come before what is said here."""
    params = params or SamplingParams()
    made = {
        "request_id": request_id,
        "engine_id": request_id,
        "prompt_token_ids": list(prompt),
        "params": params,
        "eos_token_ids": (EOS, 2),
        "seed": params.seed if params.seed is not None else 7,
        "arrival_time": 0.0,
    }
    return Request(**made | fields)


def make_config(**overrides) -> EngineConfig:
    """A small configuration; any field of the nested configs can be set by name."""
    values = {
        "block_size": 4,
        "num_blocks": 64,
        "block_bytes": 1,
        "kv_cache_dtype": "float32",
        "enable_prefix_caching": True,
        "states": None,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "policy": "fcfs",
        "max_num_queued_reqs": 1000,
        "max_num_queued_tokens": 100_000,
        "vocab_size": 64,
        "max_model_len": 128,
        "eos_token_ids": (EOS, 2),
        "model": "fake",
        "served_model_names": ("fake",),
        "model_type": "fake",
        "architectures": ("Fake",),
        "dtype": "float32",
        "bos_token_id": None,
        "pad_token_id": None,
        "default_sampling_params": {},
        "max_logprobs": 20,
        **overrides,
    }

    def pick(cls):
        return cls(**{name: values[name] for name in cls.__struct_fields__ if name in values})

    return EngineConfig(
        model_config=pick(ModelConfig),
        cache_config=pick(CacheConfig),
        scheduler_config=pick(SchedulerConfig),
        compute_config=ComputeConfig(compute="native", num_threads=1),
        pooler_config=overrides.get("pooler_config"),
        lora_config=overrides.get("lora_config"),
        items_config=overrides.get("items_config"),
        sounds_config=overrides.get("sounds_config"),
    )


def make_engine(
    runner: Runner | None = None,
    tier: KvTier | None = None,
    lender: Lender | None = None,
    **overrides,
) -> SteppingEngine:
    """An engine on a `FakeRunner`, or on the runner given."""
    config = make_config(**overrides)
    runner = runner or FakeRunner(config.model_config.vocab_size)
    return SteppingEngine(config, runner, tier, lender)
