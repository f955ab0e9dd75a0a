"""The real gateway in front of a server that embeds: its vectors are those of the engine alone."""

import openai
import pytest

import weft
from tests.cli.running import running
from tests.e2e.gateway import gateway
from tests.engine.test_pooling import TEXTS, minilm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def front():
    """A gateway with one embedding worker."""
    flags = ("--served-model-name", "minilm")
    with running(str(minilm()), *flags) as server, gateway(server.address) as started:
        yield started


def test_embeddings_through_the_gateway_are_the_engines_own(front):
    """The gateway tokenises, pads as the model's file says, calls Embed, and writes what came."""
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
        answers = [
            client.embeddings.create(model="minilm", input=text, encoding_format="float")
            for text in TEXTS[:3]
        ]
    with weft.LLM(str(minilm())) as llm:
        expected = llm.embed(TEXTS[:3])
    for answer, vector in zip(answers, expected, strict=True):
        assert answer.data[0].embedding == pytest.approx(vector, abs=1e-6)
    assert answers[0].usage.prompt_tokens == 14
