"""A backend is one object and one row of a table: what it takes to have another."""

import pytest

import weft
from tests.doubles.device_backend import DeviceBackend
from weft.compute.backends import BACKENDS
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import SamplingParams, StructuredOutputsParams
from weft.engine.start.fit import fit
from weft.model.open import open_model

MODEL = "embedded:random?layers=2&hidden=32&heads=2&kv_heads=1&head_dim=16&vocab=400&max_len=256"
REQUESTS = [
    SamplingParams(temperature=0.0, max_tokens=8),
    SamplingParams(seed=3, max_tokens=8),
    SamplingParams(seed=4, max_tokens=8, top_p=0.8, top_k=30, repetition_penalty=1.2),
    SamplingParams(seed=5, max_tokens=8, logprobs=3, prompt_logprobs=2, top_k=9),
    SamplingParams(seed=6, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="[ab]+")),
]


@pytest.fixture
def device(monkeypatch):
    """One more backend."""
    backend = DeviceBackend("device")
    monkeypatch.setitem(BACKENDS, "device", backend)
    return backend


def answers(compute, mode):
    options = {"logprobs_mode": mode, "num_gpu_blocks_override": 64}
    with weft.LLM(MODEL, compute=compute, **options) as llm:
        outputs = llm.generate(["one two three"] * len(REQUESTS), REQUESTS, use_tqdm=False)
    return [
        (o.prompt_logprobs, o.outputs[0].token_ids, o.outputs[0].logprobs, o.outputs[0].text)
        for o in outputs
    ]


@pytest.mark.parametrize("mode", [LogprobsMode.RAW_LOGPROBS, LogprobsMode.PROCESSED_LOGITS])
def test_a_backend_samples_where_its_logits_are(device, mode):
    """No logits come to the host, whatever is asked for; the answers are those of a backend on the host."""
    assert answers("device", mode) == answers("native", mode)
    assert any(len(choices) > 1 for choices in device.sampler.calls)
    assert any(choices.masks is not None for choices in device.sampler.calls)
    assert any(choices.scoring is not None for choices in device.sampler.calls)


def test_the_memory_of_a_backend_is_what_the_pool_may_take(device):
    """It is asked of the backend that computes, and of no other."""
    fitted = fit(open_model(MODEL), EngineOptions(model=MODEL, compute="device"))
    assert fitted.free_bytes == 1 << 30
    with pytest.raises(ConfigError, match=r"only 1024 MiB of memory are free"):
        fit(
            open_model(MODEL),
            EngineOptions(model=MODEL, compute="device", kv_cache_bytes=2 << 30),
        )


def test_an_unknown_backend_is_refused_with_those_there_are(device):
    """The table is the list."""
    with pytest.raises(ConfigError, match="choose from auto, gpu, native, reference, echo, device"):
        fit(open_model(MODEL), EngineOptions(model=MODEL, compute="tpu"))


def test_weights_are_no_matter_of_the_backend_without_any():
    """`echo` computes nothing, and says so."""
    with pytest.raises(ConfigError, match=r"--compute echo: .* has weights"):
        fit(open_model(MODEL), EngineOptions(model=MODEL, compute="echo"))
