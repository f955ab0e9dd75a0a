"""Train `embedded:tiny` from nothing: `python -m training.tiny.train --minutes 40`.

The same seed and --steps on the same machine and torch give the same weights; --minutes lets the clock set the length.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training.tiny.batches import Batch, batches
from training.tiny.document import END_OF_TEXT, IM_END
from training.tiny.muon import Muon
from training.tiny.network import Decoder, Shape, checkpoint_name
from training.tiny.tokenizer import train_tokenizer, write_tokenizer

TARGET = Path(__file__).resolve().parents[2] / "src/weft/model/embedded/tiny"
WARMUP = 0.03  # of the whole run
MATRIX_RATE, VECTOR_RATE = 0.02, 0.004


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line asked for."""

    seed: int
    steps: int
    minutes: float | None
    tokens: int
    accumulate: int
    target: Path
    state: Path
    resume: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: finished steps, seconds spent, and the pool of documents it stands in."""

    step: int = 0
    seconds: float = 0.0
    pool: int = 0


def rate_at(fraction: float) -> float:
    """The share of the full learning rate: a short warm-up, then half a cosine to zero."""
    if fraction < WARMUP:
        return fraction / WARMUP + 0.01
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (fraction - WARMUP) / (1.0 - WARMUP))))


def make_optimizers(model: Decoder) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    named = dict(model.named_parameters())
    matrices = [
        weight for name, weight in named.items() if weight.dim() == 2 and name != "embed_tokens"
    ]
    others = [
        weight for name, weight in named.items() if weight.dim() == 1 or name == "embed_tokens"
    ]
    return [
        Muon(matrices, lr=MATRIX_RATE, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(others, lr=VECTOR_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def loss_of(model: Decoder, batch: Batch) -> Tensor:
    """Summed cross-entropy over the supervised positions; only they pass through the head."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(batch.ids)
        logits = model.logits(hidden[batch.rows, batch.columns])
    return functional.cross_entropy(logits.float(), batch.targets, reduction="sum")


def one_step(
    model: Decoder, optimizers: list[torch.optim.Optimizer], group: list[Batch], share: float
) -> float:
    """One update over a few batches; returns the mean loss per supervised token."""
    count = sum(len(batch.targets) for batch in group)
    total = 0.0
    for batch in group:
        loss = loss_of(model, batch) / count
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, rate in zip(optimizers, (MATRIX_RATE, VECTOR_RATE), strict=True):
        optimizer.param_groups[0]["lr"] = rate * share
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return total


def grouped(run: Run, tokenizer: Tokenizer, first_pool: int) -> Iterator[tuple[int, list[Batch]]]:
    """Batches in the groups that make one step."""
    group: list[Batch] = []
    for pool, batch in batches(tokenizer, seed=run.seed, first_pool=first_pool, tokens=run.tokens):
        group.append(batch)
        if len(group) == run.accumulate:
            yield pool, group
            group = []


def fraction_done(run: Run, progress: Progress) -> float:
    """The part of the run that is behind us, by the clock if one was given."""
    if run.minutes is not None:
        return progress.seconds / (run.minutes * 60.0)
    return progress.step / run.steps


def train(run: Run, model: Decoder, tokenizer: Tokenizer) -> Progress:
    """Step until the schedule is done; leave a state file to resume from every few minutes."""
    optimizers = make_optimizers(model)
    progress = Progress()
    if run.resume:
        progress = load_state(run.state, model, optimizers)
    before, mean, seen = time.monotonic() - progress.seconds, 0.0, 0
    next_save = progress.seconds + 240.0
    for pool, group in grouped(run, tokenizer, progress.pool):
        fraction = fraction_done(run, progress)
        if fraction >= 1.0:
            break
        loss = one_step(model, optimizers, group, rate_at(fraction))
        progress = Progress(progress.step + 1, time.monotonic() - before, pool)
        mean = loss if mean == 0.0 else 0.98 * mean + 0.02 * loss
        seen += sum(batch.ids.numel() for batch in group)
        if progress.step % 25 == 0:
            print(
                f"step {progress.step} loss {mean:.4f} {seen / 1e6:.2f}M tokens {progress.seconds:.0f} s {fraction:.1%}",
                flush=True,
            )
        if progress.seconds >= next_save:
            next_save = progress.seconds + 240.0
            save_state(run, model, optimizers, progress)
    save_state(run, model, optimizers, progress)
    return progress


def _state_tensors(model: Decoder, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    tensors = {f"model.{name}": weight.detach() for name, weight in model.named_parameters()}
    for number, optimizer in enumerate(optimizers):
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{index}.{key}": value for key, value in values.items()}
    return tensors


def save_state(
    run: Run, model: Decoder, optimizers: list[torch.optim.Optimizer], progress: Progress
) -> None:
    """Everything `--resume` needs, and a checkpoint to look at beside it."""
    run.state.parent.mkdir(parents=True, exist_ok=True)
    note = {"progress": json.dumps(asdict(progress))}
    save_file(_state_tensors(model, optimizers), run.state, metadata=note)
    write_weights(model, run.state.parent)


def load_state(path: Path, model: Decoder, optimizers: list[torch.optim.Optimizer]) -> Progress:
    """Put a saved state back and say where it stood."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        progress = Progress(**json.loads(file.metadata()["progress"]))
    model.load_state_dict({name: tensors[f"model.{name}"] for name, _ in model.named_parameters()})
    for number, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            if name.startswith(f"optimizer.{number}."):
                _, _, index, key = name.split(".")
                state[int(index)][key] = tensor
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": dict(state), "param_groups": groups})
    return progress


def write_weights(model: Decoder, folder: Path) -> None:
    """bf16 safetensors under the Hugging Face names; the tied head is not stored twice."""
    tensors = {}
    for name, weight in model.named_parameters():
        tensors[checkpoint_name(name)] = weight.detach().to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it private to its user


def write_configs(shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """config.json and generation_config.json."""
    pad, end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(IM_END)
    config = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
        "eos_token_id": end, "head_dim": shape.head_dim, "hidden_act": "silu", "hidden_size": shape.hidden,
        "initializer_range": 0.02, "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_positions, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": shape.heads, "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads, "pad_token_id": pad, "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None, "rope_theta": shape.rope_theta, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": shape.vocab,
    }  # fmt: skip
    generation = {
        "do_sample": True, "eos_token_id": [end, pad], "pad_token_id": pad, "temperature": 0.3, "top_k": 20, "top_p": 0.95,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def parse() -> Run:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train embedded:tiny.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--steps", type=int, default=2500, help="updates, unless --minutes is given"
    )
    parser.add_argument(
        "--minutes", type=float, help="fit the whole schedule into this much wall time"
    )
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of one batch")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of one update")
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--state", type=Path, default=Path("build/tiny/state.safetensors"))
    parser.add_argument("--resume", action="store_true", help="go on from --state")
    parser.add_argument("--threads", type=int, default=1)
    return Run(**vars(parser.parse_args()))


def the_tokenizer(run: Run) -> Tokenizer:
    """A new tokenizer, or the one that a resumed run began with, whatever the corpus has become."""
    kept = run.state.parent / "tokenizer.json"
    if run.resume:
        return Tokenizer.from_file(str(kept))
    tokenizer = train_tokenizer(seed=run.seed)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_tokenizer(tokenizer, kept.parent)
    return tokenizer


def main() -> None:
    """Tokenizer, weights, configs: everything in the folder but the chat template."""
    run = parse()
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    run.target.mkdir(parents=True, exist_ok=True)
    tokenizer = the_tokenizer(run)
    shape = Shape(vocab=tokenizer.get_vocab_size())
    model = Decoder(shape)
    progress = train(run, model, tokenizer)
    write_tokenizer(tokenizer, run.target)
    write_configs(shape, tokenizer, run.target)
    write_weights(model, run.target)
    print(f"done: {progress.step} steps, {progress.seconds:.0f} s, into {run.target}")


if __name__ == "__main__":
    main()
