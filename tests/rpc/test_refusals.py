"""The calls that a server refuses whoever asks, as the reference lists them."""

import pytest

from tests.contract.engines import local
from tests.rpc.calls import TOKENIZER_FILES, channel_to, refusal
from weft.rpc.methods import METHODS, REFUSALS

# Whether the model embeds, whether it has a tokenizer, and whether prefixes are cached.
SERVERS = {
    "Generate": (True, True, True),
    "Embed": (False, True, True),
    "StartProfile": (False, True, True),
    "StopProfile": (False, True, True),
    "GetTokenizer": (False, False, True),
    "SubscribeKvEvents": (False, True, False),
}


async def refused(name: str, embeds: bool, has_tokenizer: bool, is_caching: bool):
    """What a server of that kind answers to a plain message."""
    options = {"runner": "pooling" if embeds else "auto", "enable_prefix_caching": is_caching}
    files = TOKENIZER_FILES if has_tokenizer else {}
    async with local(**options) as engine, channel_to(engine, files) as channel:
        method = METHODS[name]
        make = channel.unary_stream if method.is_streaming else channel.unary_unary
        message = method.request_type()
        if "tokenized" in method.request_type.DESCRIPTOR.fields_by_name:
            message.tokenized.input_ids.append(5)
        return await refusal(make(method.path)(message.SerializeToString()))


def test_every_listed_refusal_is_tried():
    """The table and this file tell the same."""
    assert SERVERS.keys() == REFUSALS.keys()


@pytest.mark.parametrize("name", SERVERS)
async def test_a_refusal_is_as_the_reference_says(name: str):
    """The status that is listed, and a sentence."""
    status, detail = await refused(name, *SERVERS[name])

    assert status is REFUSALS[name][0]
    assert " " in detail
