"""How fast a simulated worker is: a step's time as a line, each constant with where it was published."""

from dataclasses import dataclass, replace

BLOCK_SIZE = 16  # tokens: of vLLM, and of Weft's engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceModel:
    """A step takes `step_s`, and more for each sequence that it decodes and each token that it prefills."""

    name: str
    step_s: float
    decode_s: float  # of one sequence
    prefill_s: float  # of one token
    num_blocks: int
    max_running: int
    max_batched_tokens: int

    def step_time_s(self, num_decoding: int, num_prefill_tokens: int) -> float:
        """How long a step of so much work takes."""
        return self.step_s + num_decoding * self.decode_s + num_prefill_tokens * self.prefill_s

    def slowed(self, factor: float) -> "ServiceModel":
        """The same engine on a slower machine of as much memory."""
        return replace(
            self,
            name=f"{self.name}, {factor:g} times slower",
            step_s=self.step_s * factor,
            decode_s=self.decode_s * factor,
            prefill_s=self.prefill_s * factor,
        )


def through(first: tuple[int, float], second: tuple[int, float]) -> tuple[float, float]:
    """Where the line through two (sequences, seconds) begins, and its slope."""
    slope = (second[1] - first[1]) / (second[0] - first[0])
    return first[1] - first[0] * slope, slope


# vLLM with Llama-3.1-8B in 16 bits on one H100 of 80 GB.
# - One sequence: 6.48 ms a token, vLLM 0.21.0, yobitelcomm.github.io/bench/recipes/concurrency-sweep.
# - Eight: 997.5 ms for 128 tokens, "latency_llama8B_tp1" of vLLM's own performance-benchmark on H100.
#   (The former's 16 sequences take 10.94 ms, with prompts computed between; the line says 9.3.)
# - Prompts: 15,928 tokens a second, llm-d's own default of `peakPrefillThroughput`.
# - Memory, reckoned: 0.92 of 80 GB (vLLM's --gpu-memory-utilization), less 16.1 GB of weights and 4 GB
#   for a step, at 128 KiB a token (32 layers, 8 heads of 128, keys and values, 2 bytes).
# - vLLM's defaults on this GPU: 8,192 tokens a step; 256 sequences.
_H100_STEP_S, _H100_DECODE_S = through((1, 6.48e-3), (8, 997.5e-3 / 128))
VLLM_H100 = ServiceModel(
    name="vLLM, Llama-3.1-8B, H100",
    step_s=_H100_STEP_S,
    decode_s=_H100_DECODE_S,
    prefill_s=1 / 15928,
    num_blocks=int((0.92 * 80e9 - 16.1e9 - 4e9) / 131072) // BLOCK_SIZE,
    max_running=256,
    max_batched_tokens=8192,
)

# Weft with SmolLM2-135M on two virtual CPUs: benchmarks/results/peers.md, medians beside vLLM at d38eb34.
# - One sequence (W1): 128 tokens at 116 tokens/s, the first after 79.8 ms.
# - Prompts (W4): eight of 1,024 tokens, 8 tokens out of each, in 5.57 s.
# - 32 sequences (W2): 4,096 tokens at 661 tokens/s, less the time of 4,096 tokens of prompts.
# - Memory and limits: as in that benchmark, room for 16,384 tokens; 32 at once.
_WEFT_ONE_S = (128 / 116 - 79.8e-3) / 127
_WEFT_PREFILL_S = (5.57 - 7 * 2 * _WEFT_ONE_S) / 8192
_WEFT_STEP_S, _WEFT_DECODE_S = through(
    (1, _WEFT_ONE_S), (32, (4096 / 661 - 4096 * _WEFT_PREFILL_S) / 127)
)
WEFT_CPU = ServiceModel(
    name="Weft, SmolLM2-135M, 2 CPUs",
    step_s=_WEFT_STEP_S,
    decode_s=_WEFT_DECODE_S,
    prefill_s=_WEFT_PREFILL_S,
    num_blocks=16384 // BLOCK_SIZE,
    max_running=32,
    max_batched_tokens=512,
)

# vLLM's CPU build on the same machine and work: the column beside it.
_VLLM_CPU_ONE_S = (128 / 47.4 - 95.2e-3) / 127
_VLLM_CPU_PREFILL_S = (6.74 - 7 * 2 * _VLLM_CPU_ONE_S) / 8192
_VLLM_CPU_STEP_S, _VLLM_CPU_DECODE_S = through(
    (1, _VLLM_CPU_ONE_S), (32, (4096 / 427 - 4096 * _VLLM_CPU_PREFILL_S) / 127)
)
VLLM_CPU = ServiceModel(
    name="vLLM, SmolLM2-135M, 2 CPUs",
    step_s=_VLLM_CPU_STEP_S,
    decode_s=_VLLM_CPU_DECODE_S,
    prefill_s=_VLLM_CPU_PREFILL_S,
    num_blocks=16384 // BLOCK_SIZE,
    max_running=32,
    max_batched_tokens=512,
)

SERVICES = {"vllm-h100": VLLM_H100, "weft-cpu": WEFT_CPU, "vllm-cpu": VLLM_CPU}
