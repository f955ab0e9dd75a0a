"""Pictures that tests show to models."""

import base64
import io

import numpy as np
from PIL import Image


def noise(seed: int, width: int = 40, height: int = 24) -> Image.Image:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    """The picture as a file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def data_url(image: Image.Image) -> str:
    """The picture as a data: URL."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"
