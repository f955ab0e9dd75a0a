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


def _smollm2_on_cpus(
    name: str, *, one: float, first_s: float, prompts_s: float, many: float
) -> ServiceModel:
    """`one` and `many`: tokens/s of 1 and of 32 sequences."""
    one_s = (128 / one - first_s) / 127
    prefill_s = (prompts_s - 7 * 2 * one_s) / 8192
    step_s, decode_s = through((1, one_s), (32, (4096 / many - 4096 * prefill_s) / 127))
    return ServiceModel(
        name=f"{name}, SmolLM2-135M, 2 CPUs", step_s=step_s, decode_s=decode_s, prefill_s=prefill_s,
        num_blocks=16384 // BLOCK_SIZE, max_running=32, max_batched_tokens=512,
    )  # fmt: skip


# Weft with SmolLM2-135M on two virtual CPUs: benchmarks/results/peers.md, medians beside vLLM at d38eb34.
# - One sequence (W1): 128 tokens at 116 tokens/s, the first after 79.8 ms.
# - Prompts (W4): eight of 1,024 tokens, 8 tokens out of each, in 5.57 s.
# - 32 sequences (W2): 4,096 tokens at 661 tokens/s, less the time of 4,096 tokens of prompts.
# - Memory and limits: as in that benchmark, room for 16,384 tokens; 32 at once.
WEFT_CPU = _smollm2_on_cpus("Weft", one=116, first_s=79.8e-3, prompts_s=5.57, many=661)
# vLLM's CPU build on the same machine and work: the column beside it.
VLLM_CPU = _smollm2_on_cpus("vLLM", one=47.4, first_s=95.2e-3, prompts_s=6.74, many=427)

SERVICES = {"vllm-h100": VLLM_H100, "weft-cpu": WEFT_CPU, "vllm-cpu": VLLM_CPU}
