"""Small checkpoints with a head for multi-token prediction, and what that computes in torch.

Such a head has a layer more than transformers' model of the family: it is taken from a model that is a layer longer.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.compute.families import DEEPSEEK, DELTA, GLM_EXPERTS, QWEN_EXPERTS, make_model, save

_DELTA_LAYERS = ["linear_attention", "full_attention"] * 2
CASES = {
    "deepseek_v3": (
        "deepseek_v3",
        {**DEEPSEEK, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
    ),
    "glm4_moe": ("glm4_moe", {**GLM_EXPERTS, "use_qk_norm": True, "attention_bias": True}),
    "qwen3_next": (
        "qwen3_next",
        {
            **DELTA,
            **QWEN_EXPERTS,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "layer_types": _DELTA_LAYERS,
        },
    ),
    "qwen3_5_text": ("qwen3_5_text", {**DELTA, "layer_types": _DELTA_LAYERS}),
}
_NUM_LAYERS, _HIDDEN = 4, 48


@dataclass
class Head:
    """`path` opens it. Of a sequence of tokens `states` gives the model's last hidden states, and the head's."""

    path: str
    longer: nn.Module
    tensors: dict[str, torch.Tensor]
    norm_offset: float

    def states(self, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, hidden], and [tokens - 1, hidden]."""
        ids = torch.tensor([token_ids])
        whole, layers, norm = self.longer.model, self.longer.model.layers, self.longer.model.norm
        kinds = getattr(whole.config, "layer_types", None)
        try:
            with torch.no_grad():
                whole.layers = layers[:_NUM_LAYERS]
                hidden = whole(ids, use_cache=False).last_hidden_state
                pairs = torch.cat(
                    [
                        self._normed("join_embed_norm", whole.embed_tokens(ids[:, 1:])),
                        self._normed("join_hidden_norm", hidden[:, :-1]),
                    ],
                    dim=-1,
                )
                whole.layers, whole.norm = layers[_NUM_LAYERS:], nn.Identity()
                if kinds is not None:  # by which masks are chosen
                    whole.config.layer_types = kinds[_NUM_LAYERS:]
                joined = pairs @ self.tensors["join"].T
                given = whole(inputs_embeds=joined, use_cache=False).last_hidden_state
                return hidden[0], self._normed("norm", given)[0]
        finally:
            whole.layers, whole.norm = layers, norm
            if kinds is not None:
                whole.config.layer_types = kinds

    def _normed(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        weight = self.tensors[name] + self.norm_offset
        eps = self.longer.config.rms_norm_eps
        return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight


def write_head(model_type: str, settings: dict, directory: Path, *, is_right: bool = False) -> Head:
    """Draw a model with a head. What `is_right` guesses is right mostly.

    Its model then follows the last token nearly alone, and the head hands that token on as it is.
    """
    settings = {**settings, "num_hidden_layers": _NUM_LAYERS + 1}
    if "layer_types" in settings:
        settings["layer_types"] = [*settings["layer_types"], "full_attention"]
    longer = make_model(model_type, settings)
    is_qwen = model_type.startswith("qwen")
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(_HIDDEN, 2 * _HIDDEN, generator=generator) * 0.1
    whole = torch.cat([torch.eye(_HIDDEN), torch.zeros(_HIDDEN, _HIDDEN)], dim=1)
    offset = 1.0 if is_qwen else 0.0
    tensors = {"join": whole + noise * (0.1 if is_right else 1.0)}
    for name in ("join_embed_norm", "join_hidden_norm", "norm"):
        drawn = torch.randn(_HIDDEN, generator=generator) * 0.1
        tensors[name] = torch.full((_HIDDEN,), 1.0 - offset) + (0.0 if is_right else drawn)
    if is_right:
        _quieten(longer)
        tensors["norm"] = longer.model.norm.weight.detach().clone()
    path = save(longer, directory)
    _rewrite(Path(path), tensors, is_qwen=is_qwen)
    return Head(path, longer, tensors, offset)


def _quieten(model: nn.Module) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "layers." in name and ("o_proj" in name or "down" in name or "out_proj" in name):
                weight.mul_(0.02)


def _rewrite(path: Path, tensors: dict[str, torch.Tensor], *, is_qwen: bool) -> None:
    """The last layer becomes the head's."""
    file, config_file = path / "model.safetensors", path / "config.json"
    stored, last = load_file(file), f"model.layers.{_NUM_LAYERS}."
    names = {
        "join": f"{last}eh_proj",
        "join_embed_norm": f"{last}enorm",
        "join_hidden_norm": f"{last}hnorm",
        "norm": f"{last}shared_head.norm",
    }
    if is_qwen:
        own = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        names = {ours: f"mtp.{theirs}" for ours, theirs in zip(names, own, strict=True)}
        stored = {
            f"mtp.layers.0.{name.removeprefix(last)}" if name.startswith(last) else name: tensor
            for name, tensor in stored.items()
        }
    else:  # releases have both once more
        for name, source in (
            ("embed_tokens", "model.embed_tokens"),
            ("shared_head.head", "lm_head"),
        ):
            stored[f"{last}{name}.weight"] = stored[f"{source}.weight"].clone()
    stored |= {f"{names[ours]}.weight": tensor for ours, tensor in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, file)
    config = json.loads(config_file.read_text())
    config["num_hidden_layers"] = _NUM_LAYERS
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:_NUM_LAYERS]
    if not is_qwen:
        config["num_nextn_predict_layers"] = 1
    config_file.write_text(json.dumps(config))
