"""Videos that tests show to models: a bar that moves over noise."""

import base64
import io

import av
import numpy as np


def frames(num_frames: int, width: int = 64, height: int = 48) -> np.ndarray:
    """Frames of dull squares under a bar that moves, [frames, height, width, 3]: no resampling goes beyond a byte."""
    random = np.random.default_rng(num_frames * 10_007 + width)
    coarse = random.integers(60, 196, (-(-height // 8), -(-width // 8), 3), np.uint8)
    ground = coarse.repeat(8, 0).repeat(8, 1)[:height, :width]
    result = np.repeat(ground[None], num_frames, 0)
    for number, frame in enumerate(result):
        frame[:, number * 3 % width :][:, :6] = 195 - 15 * (number % 10)
    return result


def video(
    num_frames: int = 12,
    width: int = 64,
    height: int = 48,
    *,
    rate: int = 6,
    codec: str = "libx264",
    form: str = "mp4",
) -> bytes:
    """The file of such a video."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for frame in frames(num_frames, width, height):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def decoded(data: bytes) -> np.ndarray:
    """All frames of a file: [frames, height, width, 3]."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


def video_url(data: bytes) -> str:
    """The file as a data: URL."""
    return f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
