"""What llama.cpp makes of a GGUF file: logits and the greedy tokens behind a prompt, or the token ids of texts.

Runs in the environment of llama.cpp. What is wanted comes on stdin as JSON, and the answer goes to stdout.
"""

import ctypes
import json
import os
import sys

import llama_cpp
import numpy as np

CONTEXT = 256


def main() -> None:
    """Load the file, answer, end."""
    wanted = json.load(sys.stdin)
    pipe = os.dup(1)
    os.dup2(2, 1)
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = "texts" in wanted
    model = llama_cpp.llama_model_load_from_file(wanted["file"].encode(), params)
    if not model:
        raise SystemExit("llama.cpp does not load this file")
    if "texts" in wanted:
        answer = [tokenize(model, text) for text in wanted["texts"]]
    else:
        answer = generate(model, wanted["prompt"], wanted["max_tokens"])
    with os.fdopen(pipe, "w") as out:
        json.dump(answer, out)


def generate(model, prompt, max_tokens):
    """Logits of every position, and the tokens; keys and values in float32, on one thread."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp does not run this file")
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(CONTEXT, 0, 1)
    rows, tokens, following = [], [], prompt
    while len(tokens) < max_tokens:
        batch.n_tokens = len(following)
        for row, token in enumerate(following):
            batch.token[row] = token
            batch.pos[row] = len(rows) + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = True
        if llama_cpp.llama_decode(context, batch):
            raise SystemExit("llama_decode failed")
        for row in range(len(following)):
            logits = llama_cpp.llama_get_logits_ith(context, row)
            rows.append(np.ctypeslib.as_array(logits, shape=(size,)).tolist())
        tokens.append(int(np.argmax(rows[-1])))
        following = tokens[-1:]
    return {"logits": rows, "tokens": tokens}


def tokenize(model, text):
    """With what the file puts around a text, and special tokens found in it."""
    data = text.encode()
    room = len(data) + 8
    found = (llama_cpp.llama_token * room)()
    vocab = llama_cpp.llama_model_get_vocab(model)
    count = llama_cpp.llama_tokenize(vocab, data, len(data), found, room, True, True)
    return found[:count]


@llama_cpp.llama_log_callback
def log(level, text, data):
    """To stderr, which is shown where it fails."""
    del level, data
    sys.stderr.write(text.decode(errors="replace"))


if __name__ == "__main__":
    main()
