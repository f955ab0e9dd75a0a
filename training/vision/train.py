"""Train `embedded:tiny-vision` from nothing: `python -m training.vision.train --minutes 25`.

The same seed and --steps on the same machine and torch give the same weights; --minutes lets the clock set the length.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training.tiny.document import END_OF_TEXT, IM_END, IM_START
from training.tiny.muon import Muon
from training.tiny.network import Shape
from training.tiny.tokenizer import learn, write_tokenizer
from training.tiny.train import rate_at
from training.vision.batches import AROUND, IMAGE, SYSTEM, WHOLE, Batch, Encoder, batches
from training.vision.drawings import draw
from training.vision.questions import ask, ask_nothing, ask_of_two
from training.vision.tower import MERGE, PATCH, SIDE, TowerShape, VisionModel, named_weights

TARGET = Path(__file__).resolve().parents[2] / "src/weft/model/embedded/tiny-vision"
SPECIAL = (END_OF_TEXT, IM_START, IM_END, IMAGE, AROUND, WHOLE)
MAX_ENTRIES = 512
MAX_POSITIONS = 1024
MATRIX_RATE, VECTOR_RATE = 0.02, 0.004
TOWER = TowerShape()


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line asked for."""

    seed: int
    steps: int
    minutes: float | None
    size: int
    target: Path
    resume: bool
    threads: int


def train_tokenizer(seed: int, num_texts: int = 20_000) -> Tokenizer:
    """Learns the merges from questions and answers."""
    rng = random.Random(seed)
    texts = [SYSTEM, "system\nuser\nassistant\n"] * 50
    for _ in range(num_texts // 10):
        first, second = draw(rng), draw(rng)
        texts += [text for _ in range(7) for text in ask(rng, first)]
        texts += [text for _ in range(2) for text in ask_of_two(rng, first, second)]
        texts += ask_nothing(rng)
    return learn(texts, SPECIAL, (), MAX_ENTRIES)


def make_shape(tokenizer: Tokenizer) -> Shape:
    """Returns the sizes of the decoder."""
    return Shape(
        vocab=tokenizer.get_vocab_size(),
        hidden=128,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=32,
        intermediate=256,
        max_positions=MAX_POSITIONS,
    )


def make_optimizers(model: VisionModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, patches, norms and biases."""
    matrices, others = [], []
    for name, weight in model.named_parameters():
        is_matrix = weight.dim() == 2 and "embed" not in name
        (matrices if is_matrix else others).append(weight)
    return [
        Muon(matrices, lr=MATRIX_RATE, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(others, lr=VECTOR_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def loss_of(model: VisionModel, batch: Batch) -> Tensor:
    """Mean cross-entropy over the tokens of answers; only they pass through the head."""
    hidden = model(batch.ids, batch.pictures, batch.places, batch.positions, batch.mask)
    logits = model.decoder.logits(hidden[batch.rows, batch.columns])
    return functional.cross_entropy(logits, batch.targets)


def train(run: Run, model: VisionModel, tokenizer: Tokenizer, save: Callable[[], None]) -> int:
    """Steps until the schedule is done, and saves the model now and then; returns the number of steps."""
    optimizers = make_optimizers(model)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    begin, mean, step = time.monotonic(), 0.0, 0
    for step, batch in enumerate(batches(Encoder(tokenizer), seed=run.seed, size=run.size)):
        seconds = time.monotonic() - begin
        done = step / run.steps if run.minutes is None else seconds / (60 * run.minutes)
        if done >= 1:
            break
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in zip(optimizers, (MATRIX_RATE, VECTOR_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * rate_at(done)
            optimizer.step()
            optimizer.zero_grad(
                set_to_none=False
            )  # Muon needs all gradients; a batch may have no pictures
        mean = loss.item() if not step else 0.98 * mean + 0.02 * loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {mean:.4f} {seconds:.0f} s {done:.1%}", flush=True)
            save()
    return step


@torch.no_grad()
def read_model(model: VisionModel, folder: Path) -> None:
    """Reads the weights that an earlier run has written."""
    tensors = load_file(folder / "model.safetensors")
    for name, weight in named_weights(model).items():
        weight.copy_(tensors[name])


def write_model(model: VisionModel, shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes all files of the checkpoint but the chat template."""
    write_tokenizer(tokenizer, folder, SPECIAL, ())
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"model_max_length": shape.max_positions}
    path.write_text(json.dumps(config, indent=2) + "\n")
    tensors = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in named_weights(model).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it private to its user
    for name, values in _configs(shape, tokenizer).items():
        (folder / name).write_text(json.dumps(values, indent=2) + "\n")


def _configs(shape: Shape, tokenizer: Tokenizer) -> dict[str, object]:
    pad, end, image = (tokenizer.token_to_id(token) for token in (END_OF_TEXT, IM_END, IMAGE))
    text = {
        "model_type": "llama", "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "hidden_act": "silu", "rms_norm_eps": shape.norm_eps, "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions, "vocab_size": shape.vocab, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": None, "eos_token_id": end, "pad_token_id": pad, "tie_word_embeddings": True,
    }  # fmt: skip
    vision = {
        "model_type": "smolvlm_vision", "hidden_size": TOWER.hidden, "intermediate_size": TOWER.intermediate,
        "num_hidden_layers": TOWER.layers, "num_attention_heads": TOWER.heads, "num_channels": 3, "image_size": SIDE,
        "patch_size": PATCH, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": TOWER.norm_eps,
    }  # fmt: skip
    config = {
        "architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm", "image_token_id": image,
        "scale_factor": MERGE, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": shape.vocab,
        "bos_token_id": None, "eos_token_id": end, "pad_token_id": pad, "text_config": text, "vision_config": vision,
    }  # fmt: skip
    pictures = {
        "image_processor_type": "SmolVLMImageProcessor", "do_convert_rgb": True, "do_image_splitting": False,
        "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "max_image_size": {"longest_edge": SIDE}, "resample": 1, "rescale_factor": 1 / 255,
        "size": {"longest_edge": SIDE},
    }  # fmt: skip
    # Without a temperature, servers sample at 1, and the answers are few words that are either right or wrong.
    generation = {
        "do_sample": True,
        "eos_token_id": [end, pad],
        "pad_token_id": pad,
        "temperature": 0.05,
    }
    return {
        "config.json": config,
        "preprocessor_config.json": pictures,
        "generation_config.json": generation,
    }


def parse() -> Run:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Train embedded:tiny-vision.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--steps", type=int, default=2500, help="updates, unless --minutes is given"
    )
    parser.add_argument(
        "--minutes", type=float, help="fit the whole schedule into this much wall time"
    )
    parser.add_argument("--size", type=int, default=24, help="pictures of a batch")
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--resume", action="store_true", help="go on from the weights in --target")
    parser.add_argument("--threads", type=int, default=1)
    return Run(**vars(parser.parse_args()))


def main() -> None:
    """Makes everything in the folder but the chat template."""
    run = parse()
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    run.target.mkdir(parents=True, exist_ok=True)
    if run.resume:
        tokenizer = Tokenizer.from_file(str(run.target / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(run.seed)
    shape = make_shape(tokenizer)
    model = VisionModel(shape, TOWER)
    if run.resume:
        read_model(model, run.target)
    save = partial(write_model, model, shape, tokenizer, run.target)
    num_steps = train(run, model, tokenizer, save)
    save()
    print(f"done: {num_steps} steps into {run.target}")


if __name__ == "__main__":
    main()
