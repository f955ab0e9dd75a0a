"""`EchoRunner`: answers with the prompt, token by token, at a fixed rate; its KV pool stores token ids."""

import time
from collections.abc import Callable

import numpy as np

from weft.compute.cpu import no_effect
from weft.compute.host_blocks import HostBlocks
from weft.compute.memory import free_memory_bytes
from weft.compute.native import NativeSampler, cpu
from weft.compute.protocols.runner import Batch, FloatArray, IntArray, Runner
from weft.compute.protocols.sampler import Sampler
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import EchoSpec, ModelSpec

_CERTAIN = 100.0  # logit of the answer; all others are 0, so sampling at temperature 1 obeys too


class EchoRunner(HostBlocks):
    """A runner that echoes the prompt: the row `k` tokens after the prompt's last token gives prompt token `k`, then
    end-of-sequence.
    """

    adapters = None
    kv_layout = "echo-1"

    def __init__(self, spec: EchoSpec, sleep: Callable[[float], None] = time.sleep) -> None:
        self.vocab_size = spec.vocab_size
        self._spec = spec
        self._sleep = sleep
        self._block_size = 0
        self._token_ids: IntArray = np.zeros(0, np.int32)  # [slots]

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Allocates the pool of token ids."""
        self._block_size = block_size
        self._token_ids = np.zeros(num_blocks * block_size, np.int32)

    def _pool_parts(self) -> list[IntArray]:
        return [self._token_ids.reshape(1, -1, self._block_size)]

    def forward(self, batch: Batch) -> FloatArray:
        """Returns the logits of each wanted row; sleeps first: longer for a prompt's first token than for later
        tokens.
        """
        self._token_ids[batch.slots] = batch.token_ids
        sequences = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        prompt_lens = batch.prompt_lens[sequences]
        places = batch.positions[batch.logit_rows] - prompt_lens + 1  # in the prompt
        # Rows before the prompt's last row are needed only for logprobs; they give the prompt's first token.
        within = np.clip(places, 0, prompt_lens - 1)
        blocks = batch.block_tables[sequences, within // self._block_size]
        answers = self._token_ids[blocks * self._block_size + within % self._block_size]
        answers = np.where(places < prompt_lens, answers, self._spec.eos_token_id)
        logits = np.zeros((len(answers), self.vocab_size), np.float32)
        logits[np.arange(len(answers)), answers] = _CERTAIN
        self._keep_pace(batch)
        return logits

    def _keep_pace(self, batch: Batch) -> None:
        last_rows = batch.query_starts[1:] - 1
        last_positions = batch.positions[last_rows]
        first_positions = batch.positions[batch.query_starts[:-1]]
        finishes = (first_positions < batch.prompt_lens) & (last_positions >= batch.prompt_lens - 1)
        if finishes.any():
            self._sleep(self._spec.ttft_s)
        elif (first_positions >= batch.prompt_lens).all():
            self._sleep(self._spec.itl_s)


class EchoBackend:
    """The backend for models without weights, which have no compute settings."""

    sampler: Sampler = NativeSampler()
    is_on_host = True
    usual_memory_share: float | None = None

    def suits(self, card: ModelCard, spec: ModelSpec | EchoSpec | None) -> bool:
        return not card.num_parameters

    def configure(self, options: EngineOptions, card: ModelCard) -> ComputeConfig:
        if card.num_parameters:
            raise ConfigError(
                f"--compute {options.compute}: {card.name} has weights, which this backend cannot compute with"
            )
        unset = EngineOptions()
        for name in ("num_threads", "quantization", "kv_cache_dtype"):
            if getattr(options, name) != getattr(unset, name):
                raise ConfigError(no_effect(name.replace("_", "-"), card))
        if options.enable_lora:
            raise ConfigError(f"--enable-lora: {card.name} is served without LoRA adapters")
        return ComputeConfig(compute="echo", num_threads=1)

    def shared_threads(self, card: ModelCard) -> int | None:
        return None

    def sized(self, checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
        return checkpoint

    def free_bytes(self) -> int:
        return free_memory_bytes()

    def load(self, checkpoint: Checkpoint, compute: ComputeConfig, *, max_model_len: int) -> Runner:
        assert isinstance(checkpoint.spec, EchoSpec), "refused by `configure`"
        return EchoRunner(checkpoint.spec)

    def describe(self, card: ModelCard, compute: ComputeConfig) -> str:
        return f"{cpu().describe()}; nothing to compute"
