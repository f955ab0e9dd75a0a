"""The model `embedded:echo?…`: repeats the prompt at a fixed rate, to test clients and routers without weights."""

import json
from types import MappingProxyType

from weft.model.card import ModelCard
from weft.model.embedded.byte_tokenizer import (
    CHATML,
    ENDOFTEXT_ID,
    MIN_VOCAB,
    SPECIALS,
    tokenizer_files,
)
from weft.model.embedded.parameters import parse_parameters
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import EchoSpec
from weft.model.weights import Weights

_KEYS = ("ttft_ms", "itl_ms", "vocab", "max_len")


def open_echo(name: str, query: str) -> Checkpoint:
    """Returns the echo model with the rate in `query`.

    `<|im_end|>` does not end an answer, because prompts contain it.
    """
    parameters = parse_parameters("echo", query, _KEYS)
    vocab_size = parameters.integer("vocab", 512, low=MIN_VOCAB, high=2**20)
    max_len = parameters.integer("max_len", 32768, low=2, high=2**20)
    spec = EchoSpec(
        vocab_size,
        ENDOFTEXT_ID,
        parameters.milliseconds("ttft_ms"),
        parameters.milliseconds("itl_ms"),
    )
    config = {
        "model_type": "echo",
        "architectures": ["EchoForCausalLM"],
        "vocab_size": vocab_size,
        "max_position_embeddings": max_len,
        "eos_token_id": ENDOFTEXT_ID,
        "pad_token_id": ENDOFTEXT_ID,
    }
    files = {
        **tokenizer_files(vocab_size, SPECIALS[0]),
        "config.json": json.dumps(config, indent=1).encode(),
    }
    card = ModelCard(
        name=name,
        model_type="echo",
        architectures=("EchoForCausalLM",),
        vocab_size=vocab_size,
        max_position_embeddings=max_len,
        eos_token_ids=(ENDOFTEXT_ID,),
        bos_token_id=None,
        pad_token_id=ENDOFTEXT_ID,
        dtype="float32",
        default_sampling_params=MappingProxyType({"temperature": 0.0}),
        num_parameters=0,
        weight_bytes=0,
        kv_bytes_per_token=4,
        notice="embedded:echo repeats the prompt; no model is behind it.",
    )
    return Checkpoint(
        card, spec, files, lambda: Weights(MappingProxyType({})), chat_template=CHATML
    )
