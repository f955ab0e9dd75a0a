"""weft.engine.front.prefix_index"""

import pytest

from tests.doubles.stepping import make_config
from tests.engine.test_front import MODEL
from weft.core.values.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored, Medium
from weft.core.values.types import LoRARequest, RequestOptions, SamplingParams
from weft.engine.front.prefix_index import PrefixIndex, cached_tokens
from weft.model.open import open_model
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer

SIZE = 4
TOKENS = list(range(100, 116))
HASHES = [bytes([number]) * 32 for number in range(8)]


def request(token_ids, **options):
    """A checked request for these tokens."""
    config = make_config(vocab_size=300)
    inputs = InputProcessor(config, Tokenizer.from_files(open_model(MODEL).tokenizer_files))
    prompt = {"prompt_token_ids": token_ids, "cache_salt": options.pop("cache_salt", None)}
    params = SamplingParams(max_tokens=1)
    return inputs.process(prompt, params, RequestOptions(request_id="r", **options))


def stored(hashes, token_ids, parent=None, **fields):
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=parent,
        token_ids=token_ids,
        block_size=SIZE,
        **fields,
    )


def holding(*events) -> PrefixIndex:
    index = PrefixIndex()
    index.take(events)
    return index


def test_the_longest_prefix_of_each_engine_counts():
    """Whatever hashes an engine has for it; the last token is computed in any case."""
    whole = holding(stored(HASHES[:4], TOKENS))
    begun = holding(stored(HASHES[4:5], TOKENS[:4]), stored(HASHES[5:6], TOKENS[4:8], HASHES[4]))
    indexes = [whole, begun, PrefixIndex()]
    assert cached_tokens(request(TOKENS), SIZE, indexes) == [12, 8, 0]
    assert cached_tokens(request([*TOKENS, 7]), SIZE, indexes) == [16, 8, 0]
    assert cached_tokens(request([7, *TOKENS]), SIZE, indexes) == [0, 0, 0]


@pytest.mark.parametrize(
    "event", [BlockRemoved(block_hashes=HASHES[:1]), AllBlocksCleared()], ids=["block", "all"]
)
def test_what_was_dropped_is_not_counted(event):
    """Nor what follows it: it is found by its parent."""
    index = holding(stored(HASHES[:4], TOKENS), event)
    assert cached_tokens(request(TOKENS), SIZE, [index]) == [0]


def test_an_adapter_that_was_loaded_again_has_blocks_of_its_own():
    """The former one's may be dropped after those are there."""
    former = stored(HASHES[:1], TOKENS[:4], lora_name="a")
    newer = stored(HASHES[1:2], TOKENS[:4], lora_name="a")
    index = holding(former, newer, BlockRemoved(block_hashes=HASHES[:1]))
    lora = LoRARequest(lora_name="a", lora_int_id=1, lora_path="/a")
    assert cached_tokens(request(TOKENS, lora_request=lora), SIZE, [index]) == [4]
    assert cached_tokens(request(TOKENS), SIZE, [index]) == [0]


def test_a_salt_finds_its_own_blocks_only():
    """As in the engines."""
    index = holding(stored(HASHES[:4], TOKENS, cache_salt="s"))
    assert cached_tokens(request(TOKENS, cache_salt="s"), SIZE, [index]) == [12]
    assert cached_tokens(request(TOKENS), SIZE, [index]) == [0]


def test_blocks_without_a_parent_here_are_passed_over():
    """Nobody could find them."""
    index = holding(stored(HASHES[1:2], TOKENS[4:8], HASHES[0]))
    assert cached_tokens(request(TOKENS), SIZE, [index]) == [0]


def test_a_block_is_there_until_it_has_left_every_medium():
    """One that left the pool for the second tier is still worth going to."""
    first = stored(HASHES[:1], TOKENS[:4])
    index = holding(
        first,
        stored(HASHES[:1], TOKENS[:4], medium=Medium.DISK),
        BlockRemoved(block_hashes=HASHES[:1]),
        stored(HASHES[1:2], TOKENS[4:8], HASHES[0], medium=Medium.DISK),
    )
    assert cached_tokens(request(TOKENS), SIZE, [index]) == [8]
    index.take([BlockRemoved(block_hashes=HASHES[:1], medium=Medium.DISK)])
    assert cached_tokens(request(TOKENS), SIZE, [index]) == [0]
