"""Short names of models that people ask for: `qwen3:0.6b` is Qwen/Qwen3-0.6B on the Hub.

A name is a family and, after a colon, a size, in lower case. A file or directory of the same name goes first.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType


def _sizes(family: str, source: str, sizes: str) -> dict[str, str]:
    """Returns the names of a family's sizes; `{}` in `source` stands for the size as the Hub writes it."""
    return {f"{family}:{size.lower()}": source.format(size) for size in sizes.split()}


SHORT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        # Chat
        **_sizes("qwen3", "Qwen/Qwen3-{}", "0.6B 1.7B 4B 8B 14B 32B 30B-A3B"),
        **_sizes("qwen2.5", "Qwen/Qwen2.5-{}-Instruct", "0.5B 1.5B 3B 7B 14B 32B"),
        **_sizes("qwen2.5-coder", "Qwen/Qwen2.5-Coder-{}-Instruct", "0.5B 1.5B 3B 7B"),
        **_sizes("llama3.2", "meta-llama/Llama-3.2-{}-Instruct", "1B 3B"),
        **_sizes("llama3.1", "meta-llama/Llama-3.1-{}-Instruct", "8B"),
        **_sizes("gemma3", "google/gemma-3-{}-it", "270m 1b 4b 12b 27b"),
        **_sizes("gemma2", "google/gemma-2-{}-it", "2b 9b 27b"),
        **_sizes("smollm2", "HuggingFaceTB/SmolLM2-{}-Instruct", "135M 360M 1.7B"),
        **_sizes("smollm3", "HuggingFaceTB/SmolLM3-{}", "3B"),
        **_sizes("mistral", "mistralai/Mistral-{}-Instruct-v0.3", "7B"),
        **_sizes("granite3.3", "ibm-granite/granite-3.3-{}-instruct", "2b 8b"),
        **_sizes("deepseek-r1", "deepseek-ai/DeepSeek-R1-Distill-Qwen-{}", "1.5B 7B 14B 32B"),
        **_sizes("gpt-oss", "openai/gpt-oss-{}", "20b 120b"),
        "olmo2:1b": "allenai/OLMo-2-0425-1B-Instruct",
        "olmo2:7b": "allenai/OLMo-2-1124-7B-Instruct",
        "phi4-mini:3.8b": "microsoft/Phi-4-mini-instruct",
        "tinyllama:1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        # Chat, as GGUF files
        "qwen3:0.6b-q8_0": "Qwen/Qwen3-0.6B-GGUF:Q8_0",
        "qwen3:1.7b-q8_0": "Qwen/Qwen3-1.7B-GGUF:Q8_0",
        "qwen3:4b-q4_k_m": "Qwen/Qwen3-4B-GGUF:Q4_K_M",
        "qwen3:8b-q4_k_m": "Qwen/Qwen3-8B-GGUF:Q4_K_M",
        # Chat with pictures
        **_sizes("qwen2.5vl", "Qwen/Qwen2.5-VL-{}-Instruct", "3B 7B"),
        **_sizes("qwen3-vl", "Qwen/Qwen3-VL-{}-Instruct", "2B 4B 8B"),
        **_sizes("smolvlm", "HuggingFaceTB/SmolVLM-{}-Instruct", "256M 500M"),
        # Embeddings and reranking
        **_sizes("qwen3-embedding", "Qwen/Qwen3-Embedding-{}", "0.6B 4B 8B"),
        **_sizes("qwen3-reranker", "Qwen/Qwen3-Reranker-{}", "0.6B 4B 8B"),
        "all-minilm:22m": "sentence-transformers/all-MiniLM-L6-v2",
        "bge-m3:567m": "BAAI/bge-m3",
        # Speech
        **_sizes("whisper", "openai/whisper-{}", "tiny base small medium large-v3 large-v3-turbo"),
        # Without an owner, as tutorials from before there were owners write them
        "gpt2": "openai-community/gpt2",
        "gpt2-medium": "openai-community/gpt2-medium",
        "gpt2-large": "openai-community/gpt2-large",
        "gpt2-xl": "openai-community/gpt2-xl",
        "distilgpt2": "distilbert/distilgpt2",
    }
)


def full_name(name: str) -> str:
    """Returns the model on the Hub that a short name stands for; any other name unchanged."""
    return SHORT_NAMES.get(name.lower(), name)


def short_name(source: str) -> str | None:
    """Returns the short name of a model on the Hub; None if it has none."""
    return next((short for short, full in SHORT_NAMES.items() if full == source), None)


def similar_names(name: str) -> list[str]:
    """Returns short names that the name may have been meant to be: all sizes of its family, or names like it."""
    family = name.lower().partition(":")[0]
    sizes = [short for short in SHORT_NAMES if short.partition(":")[0] == family]
    return sizes or get_close_matches(name.lower(), SHORT_NAMES, n=3, cutoff=0.7)
