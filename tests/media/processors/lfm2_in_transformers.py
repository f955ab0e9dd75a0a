"""Prepares pictures of noise with transformers' processor for LFM2-VL, in a process of its own.

The processor needs torchvision, which the tests do not have: the few functions that it calls are here, made of torch's
own operators, as torchvision's are. `python -m tests.media.processors.lfm2_in_transformers DIRECTORY` writes the
results of all cases there.
"""

import json
import sys
from collections.abc import Sequence
from enum import Enum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from PIL import Image

SMALL = {"tile_size": 64, "min_image_tokens": 4, "max_image_tokens": 16}
CASES = {
    "default": SMALL,
    "not divided": {**SMALL, "do_image_splitting": False},
    "few tiles": {**SMALL, "use_thumbnail": False, "max_tiles": 4, "max_pixels_tolerance": 1.0},
    "own sizes": {},
}
SIZES = (
    (1, 1),
    (64, 64),
    (57, 91),
    (301, 200),
    (640, 480),
    (1, 900),
    (450, 90),
    (90, 700),
    (1600, 1000),
)


class _Mode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def noise(width: int, height: int) -> Image.Image:
    """A picture of random pixels."""
    random = np.random.default_rng(width * 10_007 + height)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))


def _resize(image: torch.Tensor, size: Sequence[int], **_: object) -> torch.Tensor:
    return torch.nn.functional.interpolate(image, size=tuple(size), mode="bilinear", antialias=True)


def _normalize(image: torch.Tensor, mean: object, std: object, **_: object) -> torch.Tensor:
    means, stds = (torch.as_tensor(numbers).view(-1, 1, 1) for numbers in (mean, std))
    return (image - means) / stds


def _to_tensor(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _stand_in() -> None:
    """Makes what transformers imports of torchvision."""
    parts = (
        "",
        ".io",
        ".transforms",
        ".transforms.functional",
        ".transforms.v2",
        ".transforms.v2.functional",
    )
    for name in (f"torchvision{part}" for part in parts):
        module = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        vars(module).update(
            InterpolationMode=_Mode,
            resize=_resize,
            normalize=_normalize,
            pil_to_tensor=_to_tensor,
            __version__="0.28.0",
        )
        sys.modules[name] = module
        if parent := name.rpartition(".")[0]:
            setattr(sys.modules[parent], name.rpartition(".")[2], module)


def main(directory: Path) -> None:
    """Writes the settings and the results of every case."""
    _stand_in()
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import (
        Lfm2VlImageProcessor,
    )
    from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor

    words = {
        "image_token": "*",
        "image_start_token": "<|image_start|>",
        "image_end_token": "<|image_end|>",
        "image_thumbnail_token": "<|img_thumbnail|>",
    }
    for name, settings in CASES.items():
        image_processor = Lfm2VlImageProcessor(**settings)
        image_processor.save_pretrained(directory / name)
        processor = SimpleNamespace(**words, image_processor=image_processor)
        for method in (
            "_get_image_num_tokens",
            "_build_image_tokens",
            "_compute_tokens_per_tile",
            "_compute_tokens_for_image",
        ):
            setattr(processor, method, getattr(Lfm2VlProcessor, method).__get__(processor))
        for size in SIZES:
            made = image_processor([noise(*size)], return_tensors="np", return_row_col_info=True)
            text = Lfm2VlProcessor.replace_image_token(
                processor, made, 0, use_image_special_tokens=True
            )
            file = directory / name / f"{size[0]}x{size[1]}"
            made["pixel_values"].tofile(file.with_suffix(".pixels"))
            facts = {"shapes": made["spatial_shapes"].tolist(), "text": text}
            file.with_suffix(".json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
