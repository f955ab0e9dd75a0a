"""Embeddings in place of a text: rows of the model's own table here, and what you make of them elsewhere.

weft serve path/to/model --enable-prompt-embeds
pip install openai safetensors tokenizers torch
python examples/prompt_embeds.py --model path/to/model
"""

import argparse
import base64
import os
from pathlib import Path

import torch
from openai import OpenAI
from safetensors import safe_open
from safetensors.torch import save
from tokenizers import Tokenizer

TABLE = "model.embed_tokens.weight"


def embeddings(model: Path, text: str) -> torch.Tensor:
    """What the model begins with for this text, [tokens, hidden size]."""
    token_ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    for path in model.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if TABLE in file.keys():  # noqa: SIM118  # it is no dict
                return file.get_tensor(TABLE)[token_ids].contiguous()
    raise SystemExit(f"no {TABLE} in {model}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="directory of the served model")
    parser.add_argument("--prompt", default="The capital of France is")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    # What torch.save writes is read too.
    encoded = base64.b64encode(save({"rows": embeddings(args.model, args.prompt)})).decode()
    body = {
        "model": client.models.list().data[0].id, "temperature": 0, "max_tokens": 16,
    }  # fmt: skip
    answer = client.completions.create(prompt="", extra_body={"prompt_embeds": encoded}, **body)
    print("embeddings:", repr(answer.choices[0].text))
    print("text:", repr(client.completions.create(prompt=args.prompt, **body).choices[0].text))


if __name__ == "__main__":
    main()
