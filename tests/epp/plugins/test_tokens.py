from pathlib import Path

import pytest

import weft.model.embedded
from tests.epp.pools import bench, parameters, pool_of, request
from tests.model.bpe_files import GPT2_TOKENS, write_bpe_files
from weft.core.errors import ConfigError
from weft.core.values.prompts import pack_tokens
from weft.epp.config.decode import decode
from weft.epp.plugins.producers.tokens import TokenParameters, pack
from weft.epp.prefix.events import Stored
from weft.epp.request.values import InferenceRequest, Prompt
from weft.text.tokenizer import Tokenizer, tokenizer_in

TINY = Path(weft.model.embedded.__file__).parent / "tiny"
TEXT = "The quick brown fox jumps over the lazy dog. " * 4
CONFIG = (
    "plugins:\n- {type: token-producer, parameters: {modelName: '%s'}}\n"
    "- {type: precise-prefix-cache-producer, name: p,"
    " parameters: {tokenProcessorConfig: {blockSizeTokens: 4}}}\n"
    "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: p}}\n"
)


@pytest.mark.parametrize(
    ("prompt", "packed"),
    [
        (Prompt(text="abcd"), b"abcd"),
        (Prompt(text="abcde"), b"abcde\0\0\0"),
        (Prompt(text=""), b""),
        (Prompt(text="\ud800"), b"\xed\xa0\x80\0"),
        (Prompt(token_ids=(1, 2**32 - 1)), b"\1\0\0\0\xff\xff\xff\xff"),
    ],
)
def test_prompts_are_packed_four_bytes_a_token(prompt: Prompt, packed: bytes):
    """Little endian; text is its UTF-8, filled up."""
    assert pack(prompt) == packed


@pytest.mark.parametrize("key", ["udsTokenizerConfig"])
def test_rendering_elsewhere_is_refused(key: str):
    """With what to do instead."""
    with pytest.raises(ConfigError, match=rf"^p: {key} is refused: .*modelName to a directory"):
        decode({key: {}}, TokenParameters, "p")


def text_request(path: str) -> InferenceRequest:
    return InferenceRequest(
        request_id="r", path=path, headers={}, parser="openai-parser", model="m",
        prompts=(Prompt(text=TEXT),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "is_real"), [("/v1/completions", True), ("/v1/chat/completions", False)]
)
def test_text_is_tokenised_by_the_models_own_tokenizer(path: str, is_real: bool):
    """Then precise prefixes work for text, unless a template comes between."""
    files = {
        name: (TINY / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")
    }
    ids = Tokenizer.from_files(files).encode(TEXT)
    pool = pool_of(2)
    made = bench(CONFIG % TINY, pool)
    first = next(iter(pool))
    event = Stored(hashes=[1], parent=None, tokens=pack_tokens(ids[:4]), block_size=4)
    made.assembly.plugins["p"].index.apply(first, event, model="m")

    made.pick(text_request(path))

    record = made.director.decisions.get("r")
    assert record.num_prompt_tokens == len(ids)
    assert record.cached_tokens == ({"p": {first.host_port: 4}} if is_real else {})


def test_unknown_model_name_means_estimates():
    """As without a backend; token ids pass in any case."""
    made = bench(CONFIG % "some/model", pool_of(1))
    made.pick(request(text=TEXT))
    assert made.director.decisions.get("r").num_prompt_tokens == len(TEXT) // 4


def test_tokenizers_of_old_will_do(tmp_path: Path):
    """GPT-2's two files, as the servers behind it take them: its tokens are counted, not estimated."""
    write_bpe_files(tmp_path, GPT2_TOKENS, {"tokenizer_class": "GPT2Tokenizer"})
    tokenizer = tokenizer_in(tmp_path)
    assert tokenizer is not None
    made = bench(CONFIG % tmp_path, pool_of(1))
    made.pick(text_request("/v1/completions"))
    num_tokens = made.director.decisions.get("r").num_prompt_tokens
    assert num_tokens == len(tokenizer.encode(TEXT)) != len(TEXT) // 4


def test_a_name_that_nothing_is_looked_up_by_is_reported():
    """Where tokens are estimated no tokenizer is opened."""
    made = parameters(TokenParameters, backend="estimate", modelName="some/model")
    assert [key for key, _ in made.without_effect()] == ["modelName"]
    assert not [*parameters(TokenParameters, modelName="some/model").without_effect()]
