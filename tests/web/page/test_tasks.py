"""The page of models that do not chat, and of several models, in Chromium on real servers."""

import base64
from pathlib import Path

import pytest

from tests.cli.running import running
from tests.compute.encoders import make_model
from tests.doubles.whisper import sound, write_whisper
from tests.model.pooling_files import write_tokenizer
from tests.web.page.browser import NEEDS_CHROMIUM, Browser, browsing, open_page
from tests.web.page.test_browser import ask

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM, pytest.mark.filterwarnings("ignore")]


def test_texts_are_embedded_and_compared():
    """Each pair has the cosine of its vectors; a text is like itself."""
    with running("embedded:tiny", "--runner", "pooling", "--no-grpc") as server, browsing() as page:
        open_page(page, server.http)
        page.until("!document.querySelector('#embed').hidden")
        assert page.text("#to-chat") == "Embed"
        page.type("#embed-texts", "a cat\na cat\nthe stock market")
        page.click("#embed button.primary")
        page.until("document.querySelector('#embed-status').textContent.startsWith('Done')")
        cells = page.run(
            "return [...document.querySelectorAll('.likeness')].map((one) => one.textContent)"
        )
        assert len(cells) == 9
        assert cells[:2] == ["1.000", "1.000"]
        assert cells[2] == cells[6] != "1.000"
        assert page.complaints() == []


def test_documents_are_ranked(tmp_path: Path):
    """The best first, with their scores."""
    make_model("bert", "ForSequenceClassification", num_labels=1).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    with running(str(tmp_path), "--no-grpc") as server, browsing() as page:
        open_page(page, server.http)
        page.until("!document.querySelector('#rank').hidden")
        page.type("#rank-query", "the cat")
        page.type("#rank-documents", "the cat sat on a mat\nsun moon stars\nboat")
        page.click("#rank button.primary")
        page.until("document.querySelector('#rank-status').textContent.startsWith('Done')")
        scores = page.run(
            "return [...document.querySelectorAll('#rank td:nth-child(3)')].map((one) => Number(one.textContent))"
        )
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert page.complaints() == []


def test_a_recording_is_transcribed_with_times(tmp_path: Path):
    """A chosen file goes out as WAV; what is no recording is said to be none."""
    model = write_whisper(tmp_path / "whisper")
    (tmp_path / "tone.wav").write_bytes(sound(3.0))
    (tmp_path / "notes.txt").write_text("no sound")
    with running(str(model), "--no-grpc") as server, browsing() as page:
        open_page(page, server.http)
        page.until("!document.querySelector('#transcribe').hidden")
        page.run("document.querySelector('#transcribe-file').hidden = false")  # for the driver
        page.type("#transcribe-file", str(tmp_path / "tone.wav"))
        page.until("document.querySelector('#transcribe-status').textContent.startsWith('Done')")
        assert "3 s of sound" in page.text("#transcribe-result")
        page.type("#transcribe-file", str(tmp_path / "notes.txt"))
        page.until(
            "document.querySelector('#transcribe-status').textContent.includes('not a recording')"
        )
        assert page.complaints() == []


def test_models_are_loaded_and_unloaded_from_the_menu():
    """Each with its state; the page follows the one that is used."""
    argv = ("chat=embedded:tiny", "echo=embedded:echo", "--no-grpc", "--models-min-stay", "0s")
    with running(*argv) as server, browsing() as page:
        open_page(page, server.http)
        page.click("#model")
        page.until("document.querySelector('[aria-label=\"Load echo\"]')")
        page.click('[aria-label="Load echo"]')
        page.until("document.querySelector('[aria-label=\"Unload echo\"]')")
        assert "in memory" in page.text('[data-id="echo"]')
        page.click('[aria-label="Unload echo"]')
        page.until("document.querySelector('[aria-label=\"Load echo\"]')")
        page.click('[data-id="echo"]')
        page.until("document.querySelector('#model').value === 'echo'")
        assert "twice" in ask(page, "twice")
        assert page.complaints() == []


def test_a_model_that_takes_sound_takes_recordings(page_files: str, window: Browser):
    """A file becomes WAV with one channel at 16 kHz; the message has it as a part before its text."""
    window.open(f"{page_files}/")
    script = (
        "const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));"
        "return Promise.all([import('/page/sound.js'), import('/page/attach.js')]).then(async ([sound, attach]) => {"
        "const { blob, seconds } = await sound.asWav(new File([bytes], 'a.wav', { type: 'audio/wav' }));"
        "const head = new DataView(await blob.arrayBuffer());"
        "const sounds = [{ name: 'a', url: 'data:audio/wav;base64,AAAA', seconds }];"
        "const parts = attach.content({ text: 'What?', sounds });"
        "return [seconds, head.getUint32(24, true), head.getUint16(22, true), blob.size, parts]; });"
    )
    recording = base64.b64encode(sound(1.5)).decode()
    seconds, rate, channels, size, parts = window.run(script, recording)
    assert (seconds, rate, channels, size) == (1.5, 16_000, 1, 44 + 2 * 24_000)
    assert parts == [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "text", "text": "What?"},
    ]
