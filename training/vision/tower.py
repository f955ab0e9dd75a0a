"""The model in torch: a tower of SigLIP's layout, a connector that joins 2 x 2 patches, and the decoder of `embedded:tiny`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.tiny.network import Decoder, Shape, checkpoint_name

SIDE, PATCH, MERGE = 48, 8, 2
NUM_ROWS = (SIDE // PATCH // MERGE) ** 2  # rows of the decoder for a picture


@dataclass(frozen=True, slots=True)
class TowerShape:
    """Sizes of the tower."""

    hidden: int = 96
    layers: int = 3
    heads: int = 3
    intermediate: int = 288
    norm_eps: float = 1e-6


class Attention(nn.Module):
    """Attention of all patches to each other."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        for name in names:
            self.add_module(name, nn.Linear(shape.hidden, shape.hidden))

    def forward(self, x: Tensor) -> Tensor:
        """[pictures, patches, hidden] to the same."""
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two layers with GELU."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.hidden, shape.intermediate)
        self.fc2 = nn.Linear(shape.intermediate, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    """One layer of the tower."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.layer_norm2 = nn.LayerNorm(shape.hidden, shape.norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor) -> Tensor:
        """[pictures, patches, hidden] to the same."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Tower(nn.Module):
    """Pictures to rows of the tower."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.patch_embedding = nn.Linear(3 * PATCH**2, shape.hidden)
        self.position_embedding = nn.Parameter(
            0.02 * torch.randn((SIDE // PATCH) ** 2, shape.hidden)
        )
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.post_layernorm = nn.LayerNorm(shape.hidden, shape.norm_eps)

    def forward(self, pictures: Tensor) -> Tensor:
        """[pictures, 3, side, side] to [pictures, patches, hidden]."""
        patches = functional.unfold(pictures, PATCH, stride=PATCH).mT
        x = self.patch_embedding(patches) + self.position_embedding
        for layer in self.layers:
            x = layer(x)
        return self.post_layernorm(x)


class VisionModel(nn.Module):
    """Tower, connector and decoder."""

    def __init__(self, shape: Shape, tower: TowerShape) -> None:
        super().__init__()
        self.tower = Tower(tower)
        self.connector = nn.Linear(tower.hidden * MERGE**2, shape.hidden, bias=False)
        self.decoder = Decoder(shape)

    def rows(self, pictures: Tensor) -> Tensor:
        """[pictures, 3, side, side] to [pictures, rows, hidden of the decoder]."""
        side = SIDE // PATCH // MERGE
        x = self.tower(pictures).unflatten(1, (side, MERGE, side, MERGE))
        return self.connector(x.transpose(2, 3).reshape(len(pictures), side**2, -1))

    def forward(
        self, ids: Tensor, pictures: Tensor | None, places: Tensor, positions: Tensor, mask: Tensor
    ) -> Tensor:
        """Token ids [rows, length] to final hidden states; `places` are the tokens of each row that stand for pictures."""
        x = functional.embedding(ids, self.decoder.embed_tokens)
        if pictures is not None:
            rows = self.rows(pictures).reshape(len(ids), -1, x.shape[-1])
            x = x.index_copy(1, places, rows)
        return self.decoder.run(x, positions, mask)


def named_weights(model: VisionModel) -> dict[str, Tensor]:
    """Returns the weights under the names, and in the shapes, of SmolVLM in Hugging Face."""
    tensors = {"model.connector.modality_projection.proj.weight": model.connector.weight}
    for name, weight in model.decoder.named_parameters():
        whole = checkpoint_name(name).removeprefix("model.")
        tensors[f"model.text_model.{whole}"] = weight
    for name, weight in model.tower.named_parameters():
        prefix = "model.vision_model."
        if name == "patch_embedding.weight":
            weight = weight.unflatten(1, (3, PATCH, PATCH))
        if name.startswith(("patch_embedding", "position_embedding")):
            prefix += "embeddings."
        if name == "position_embedding":
            name += ".weight"
        if name.startswith("layers."):
            prefix += "encoder."
        tensors[prefix + name] = weight
    return tensors
