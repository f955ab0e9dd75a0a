"""The first line of many a tutorial: OPT and GPT-2 as they were saved then, served and asked for a text."""

import pytest
import torch
from transformers import AutoTokenizer

from tests.cli.running import running, weft
from tests.compute.families import CASES, make_model
from tests.model.bpe_files import GPT2_TOKENS, OPT_CONFIG, OPT_TOKENS, write_bpe_files

PROMPTS = ("Hello, my name is", "the lazy dog's", "你好")
OPT_IDS = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
GPT2_IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
SAVED = {
    "opt": (OPT_IDS, OPT_TOKENS, OPT_CONFIG),
    "opt, norms after, narrow embedding": (OPT_IDS, OPT_TOKENS, OPT_CONFIG),
    "gpt2": (GPT2_IDS, GPT2_TOKENS, None),
}


def complete(server, prompt):
    """The answer's text, by the most likely tokens."""
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    return server.post("/v1/completions", {**body, "model": "old"})["choices"][0]["text"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SAVED)
def test_answers_are_those_of_transformers(case, tmp_path):
    """Greedy texts are equal to those of generate(); the tokenizer is vocab.json and merges.txt."""
    ids, tokens, tokenizer_config = SAVED[case]
    model_type, settings = CASES[case]
    model = make_model(model_type, {**settings, **ids, "max_position_embeddings": 64})
    model.save_pretrained(tmp_path)
    write_bpe_files(tmp_path, tokens, tokenizer_config)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    limits = {"do_sample": False, "max_new_tokens": 24, "min_new_tokens": 24}
    expected = []
    for prompt in PROMPTS:
        given = theirs(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            made = model.generate(given, **limits, eos_token_id=None)[0, given.shape[1] :]
        expected.append(theirs.decode(made, skip_special_tokens=True))
    with running(str(tmp_path), "--served-model-name", "old") as server:
        assert [complete(server, prompt) for prompt in PROMPTS] == expected
    refused = weft("serve", str(tmp_path), "--max-model-len=65")
    assert refused.returncode == 2
    assert "--max-model-len 65 is beyond the 64 positions" in refused.stderr
