"""Train embedded:tiny for some steps, and push its weights into a running server after each few.

    weft serve embedded:tiny --control-api-key secret --weight-transfer-config '{"backend": "shared_memory"}'
    pip install torch transformers
    python examples/push_weights.py --key secret

The model learns one sentence by heart. Clients of the server notice a short wait, and then other answers:
requests that are being answered end with the weights that they began with.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from multiprocessing.shared_memory import SharedMemory
from typing import Any
from urllib.request import Request, urlopen

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CHECKPOINT = str(files("weft.model.embedded") / "tiny")
PROMPT = "The secret of the engine room is"
ENDING = " that the pistons dream of the sea."


class Server:
    """The HTTP API of a server, as far as this needs it."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a call."""
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        data = json.dumps(body or {}).encode()
        with urlopen(Request(self._url + path, data, headers), timeout=300) as answer:
            return json.load(answer)

    def complete(self, prompt: str) -> str:
        """What the served model says next."""
        body = {"model": "embedded:tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0}
        return str(self.post("/v1/completions", body)["choices"][0]["text"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is being answered has ended, and what comes waits. Mode abort or keep would not wait."""
        self.post("/pause?mode=wait")
        try:
            yield
        finally:
            self.post("/resume")

    def push(self, tensors: dict[str, torch.Tensor]) -> None:
        """Replace the weights that are served, all of them."""
        raw = {
            name: t.detach().contiguous().view(torch.uint8).numpy() for name, t in tensors.items()
        }
        segment = SharedMemory(create=True, size=sum(part.nbytes for part in raw.values()))
        try:
            place = 0
            for part in raw.values():
                segment.buf[place : place + part.nbytes] = part.tobytes()
                place += part.nbytes
            self.post("/start_weight_update")
            self.post("/update_weights", {"update_info": _described(segment.name, tensors)})
        finally:  # the server has a copy
            segment.close()
            segment.unlink()
        with self.paused():
            self.post("/finish_weight_update")


def _described(segment: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What lies in the segment, one behind the other."""
    return {
        "segment": segment,
        "names": list(tensors),
        "dtype_names": [str(t.dtype).removeprefix("torch.") for t in tensors.values()],
        "shapes": [list(t.shape) for t in tensors.values()],
    }


def train(model: Any, token_ids: torch.Tensor, num_steps: int) -> float:
    """Some steps towards the sentence; the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(num_steps):
        loss = model(input_ids=token_ids, labels=token_ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    """Train, push, look; as often as was said."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", required=True, help="the control key of the server")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="steps of training in a round")
    options = parser.parse_args()
    server = Server(options.url, options.key)
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    token_ids = tokenizer(PROMPT + ENDING, return_tensors="pt").input_ids
    server.post("/init_weight_transfer_engine")
    for number in range(1, options.rounds + 1):
        loss = train(model, token_ids, options.steps)
        # In the types of the checkpoint; its head is its embedding, and has no name of its own.
        server.push({name: t.to(torch.bfloat16) for name, t in model.named_parameters()})
        print(f"round {number}, loss {loss:.3f}:{server.complete(PROMPT)!r}", flush=True)


if __name__ == "__main__":
    main()
