"""`weft chat` on a terminal: a real one, at whose other end the test types."""

import json
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.running import Server, running, weft
from tests.cli.terminal import Terminal
from tests.faults.watching import until
from tests.model.checkpoints import write_checkpoint

ESCAPE = b"\x1b"
CTRL_C, CTRL_D, UP = b"\x03", b"\x04", b"\x1b[A"
LEAVES = b"[press Ctrl-C again, or Ctrl-D, to leave]"
PASTES = b"\x1b[?2004h"  # what a terminal is told before it is typed into
# Answers begin inside the reasoning; that there is any is what parsers go by.
OPEN = "{{ messages[-1]['content'] }}<think>{# </think> #}"


@pytest.fixture(scope="module")
def echo() -> Iterator[Server]:
    """Answers with the prompt, so that the answer shows what was sent."""
    with running("embedded:echo", "--served-model-name", "parrot") as server:
        yield server


@pytest.fixture(scope="module")
def unhurried() -> Iterator[Server]:
    """The same, a token at a time: there is time to interrupt it."""
    with running("embedded:echo?itl_ms=50") as server:
        yield server


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Reasons until it may not go on."""
    path = write_checkpoint(tmp_path_factory.mktemp("thinker"))
    (path / "chat_template.jinja").write_text(OPEN)
    with running(str(path)) as server:
        yield server


@pytest.fixture(scope="module")
def seeing() -> Iterator[Server]:
    """Answers questions about pictures."""
    with running("embedded:tiny-vision") as server:
        yield server


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def chat(server: Server, *argv: str, **environment: str) -> closing[Terminal]:
    return closing(Terminal("chat", "--address", server.address, *argv, **environment))


def converse(terminal: Terminal, *exchanges: tuple[bytes, bytes | None]) -> None:
    """Type each, once the terminal waits for it, and read on to what it shows; None: whatever that is."""
    for typed, shown in exchanges:
        terminal.read_until(PASTES)
        terminal.type(typed)
        if shown is not None:
            terminal.read_until(shown)


def num_running(server: Server) -> int:
    lines = server.get("/metrics").splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if "requests_running{" in line))


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_an_answer_but_not_the_conversation(unhurried: Server, state: dict[str, str]):
    """The server aborts it too; the next message is answered, and Ctrl-D leaves."""
    with chat(unhurried, **state, TERM="xterm") as terminal:
        converse(terminal, (b"abcdefghijklmnopqrstuvwxyz" * 20 + b"\r", b"user\r\nabc"))
        until(lambda: num_running(unhurried) == 1)
        terminal.type(CTRL_C)
        terminal.read_until(b"[stopped]")
        until(lambda: num_running(unhurried) == 0)
        converse(terminal, (b"/clear\r", None), (b"!\r", b"assistant"), (CTRL_D, None))
        assert terminal.wait() == 0


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_leaves(echo: Server, state: dict[str, str]):
    """The first clears what is typed, or says so; a message in between takes it back."""
    with chat(echo, **state, TERM="xterm") as terminal:
        converse(terminal, (b"typed" + CTRL_C, None), (CTRL_C, LEAVES), (b"hello\r", b"assistant"))
        converse(terminal, (CTRL_C, LEAVES), (CTRL_C, None))
        assert terminal.wait() == 0


def test_commands_of_a_conversation(echo: Server, state: dict[str, str], tmp_path: Path):
    """The echo shows which prompt each led to."""
    with chat(echo, "--system", "Be brief.", **state) as terminal:
        terminal.read_until(b"> ")
        for typed, shown in (
            ("one", "system\r\nBe brief.\r\nuser\r\none\r\nassistant"),
            ("/regen", "system\r\nBe brief.\r\nuser\r\none\r\nassistant"),
            ("/system", "Be brief."),
            ("/clear", "[conversation cleared]"),
            ("/regen", "error: there is no answer yet"),
            ("/system Be kind.", "> "),
            ("//two", "system\r\nBe kind.\r\nuser\r\n/two\r\nassistant"),
            ("/nope", "error: unknown command /nope; /help lists the commands"),
            ("/help", "/regen     answer the last message again"),
            ("/verbose", "[tokens per second: shown]"),
            ("/reasoning", "the last answer has no reasoning"),
            ("/save", "error: give a file"),
            (f"/save {tmp_path}/a.json", "[saved"),
            (f"/save {tmp_path}/a.md", "[saved"),
            (f"/save {tmp_path}/a.md", "File exists"),
        ):
            terminal.type(typed.encode() + b"\r")
            terminal.read_until(typed.encode())
            terminal.read_until(shown.encode())
        terminal.type(b"/bye\r")
        assert terminal.wait() == 0
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["model"] == "parrot"
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    assert saved["messages"][1]["content"] == "/two"
    assert (
        (tmp_path / "a.md").read_text().startswith("# parrot\n\n## system\n\nBe kind.\n\n## user")
    )


def test_pictures_go_with_the_next_message(seeing: Server, state: dict[str, str], tmp_path: Path):
    """They stay in the conversation, and are marks in a saved one that people read."""
    Image.new("RGB", (60, 40), "red").save(tmp_path / "red.png")
    ask = "What colour is the background?"
    with closing(Terminal("chat", "--address", seeing.http, **state)) as terminal:
        terminal.read_until(b"> ")
        for typed, shown in (
            ("/image", "error: give a file: /image FILE"),
            (f"/image {tmp_path}/none.png", "No such file"),
            ("/video", "error: give a file: /video FILE"),
            (f"/image {tmp_path}/red.png", "[red.png goes with the next message]"),
            (ask, "Red."),
            ("/regen", "Red."),
            (f"/save {tmp_path}/a.json", "[saved"),
            (f"/save {tmp_path}/a.md", "[saved"),
            ("/clear", "[conversation cleared]"),
            ("What is in the picture?", "I see no picture"),
        ):
            terminal.type(typed.encode() + b"\r")
            terminal.read_until(typed.encode())
            terminal.read_until(shown.encode())
        terminal.type(b"/bye\r")
        assert terminal.wait() == 0
    picture, text = json.loads((tmp_path / "a.json").read_text())["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": ask}
    assert f"## user\n\n[picture]\n{ask}" in (tmp_path / "a.md").read_text()


def test_pictures_go_over_grpc_too(seeing: Server, state: dict[str, str], tmp_path: Path):
    """The server prepares them, as it does for requests over HTTP."""
    Image.new("RGB", (60, 40), "red").save(tmp_path / "red.png")
    with chat(seeing, **state) as terminal:
        terminal.read_until(b"> ")
        for typed, shown in (
            (f"/image {tmp_path}/red.png", "goes with the next message"),
            ("What colour is the background?", "Red."),
            ("/clear", "[conversation cleared]"),
        ):
            terminal.type(typed.encode() + b"\r")
            terminal.read_until(typed.encode())
            terminal.read_until(shown.encode())


@pytest.mark.parametrize(
    "typed",
    [b"one\\\rtwo\r", b"one" + ESCAPE + b"\rtwo\r", b"\x1b[200~one\rtwo\x1b[201~\r"],
    ids=["backslash", "alt-enter", "pasted"],
)
def test_a_message_may_have_several_lines(echo: Server, state: dict[str, str], typed: bytes):
    """A pasted text is one message, not one a line."""
    with chat(echo, "--verbose", **state, TERM="xterm") as terminal:
        converse(terminal, (typed, b"user\r\none\r\ntwo\r\nassistant\r\n"))
        terminal.read_until(b" tokens/s, first after ")


def test_what_is_typed_is_remembered(echo: Server, state: dict[str, str], tmp_path: Path):
    """In a file that nobody else reads; the next conversation has it under the arrow."""
    history = tmp_path / "weft" / "chat_history"
    history.parent.mkdir()
    history.touch(mode=0o644)
    with chat(echo, **state, TERM="xterm") as terminal:
        converse(terminal, (b"remember me\r", b"assistant"), (CTRL_D, None))
        assert terminal.wait() == 0
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "remember me" in history.read_text()
    with chat(echo, **state, TERM="xterm") as terminal:
        converse(terminal, (UP, b"remember me"))
        terminal.type(b"\r")
        terminal.read_until(b"user\r\nremember me")


def test_nothing_is_remembered_on_request(echo: Server, state: dict[str, str], tmp_path: Path):
    """Secrets are typed too."""
    with chat(echo, "--no-history", **state, TERM="xterm") as terminal:
        converse(terminal, (b"my secret\r", b"assistant"), (CTRL_D, None))
        assert terminal.wait() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_history_does_not_grow_for_ever(echo: Server, state: dict[str, str], tmp_path: Path):
    """The later half stays, in whole entries."""
    history = tmp_path / "weft" / "chat_history"
    history.parent.mkdir()
    history.write_text("".join(f"\n# 2026-01-01\n+message {number}\n" for number in range(40_000)))
    with chat(echo, **state, TERM="xterm") as terminal:
        converse(terminal, (UP, b"message 39999"))
    assert history.stat().st_size < 2**20
    assert history.read_text().startswith("\n# 2026-01-01\n+message ")


def test_reasoning_is_folded_to_a_line(thinker: Server, state: dict[str, str]):
    """Dimmed while it comes, then one line in its place, which a command unfolds."""
    argv = ("--no-history", "--max-tokens", "8", "--seed", "1")
    with chat(thinker, *argv, **state, TERM="xterm") as terminal:
        converse(terminal, (b"hello\r", b"\r\x1b[K\x1b[2mreasoning: "))
        terminal.read_until(
            b"\r\x1b[K\x1b[2m[reasoning, 8 tokens: /reasoning shows it]\x1b[22m\r\n"
        )
        terminal.read_until(b"[the answer was cut off: ")
        converse(terminal, (b"/reasoning\r", b"\x1b[?2004l\x1b[2m"))
        assert len(terminal.read_until(b"\x1b[22m\r\n")) > 0


@pytest.mark.parametrize(("mode", "shows"), [("fold", False), ("show", True), ("hide", False)])
def test_a_pipe_gets_the_answer_alone(thinker: Server, mode: str, shows: bool):
    """Unless the reasoning is requested."""
    argv = ("chat", "hello", "--max-tokens", "8", "--seed", "1", "--address", thinker.address)
    result = weft(*argv, "--reasoning", mode)
    assert (bool(result.stdout.strip()), result.stderr) == (shows, "")


# Parts as a parser finds them, on a real screen.
SHOW = """
from weft.cli.chat.model_answer import Answer
from weft.cli.chat.screen import Screen
from weft.text.parsers.parts import Content, Reasoning
screen = Screen("fold", "--reasoning show")
screen.begin(answer := Answer(num_reasoning_tokens=3))
for text in ("two\x1b", " " + "words " * 40):
    answer.reasoning += text
    screen.show(Reasoning(text))
screen.show(Content("\\n\\nso"))
screen.end()
"""


def test_what_a_model_reasons_does_not_command_the_terminal():
    """Only the end of a long line is shown, for a line that wraps cannot be taken back."""
    with closing(Terminal(program=(sys.executable, "-c", SHOW), TERM="xterm")) as terminal:
        shown = terminal.read_rest().decode()
    _, first, second, last = shown.split("\r\x1b[K\x1b[2m")
    assert first == "reasoning: two\u241b\x1b[22m"
    assert second.startswith("reasoning: ")
    assert len(second.removesuffix("\x1b[22m")) < 80
    assert last == "[reasoning, 3 tokens: --reasoning show shows it]\x1b[22m\r\nso\r\n"


def test_a_wrong_option_ends_with_status_2_before_anything_is_typed(echo: Server):
    """Not with the first answer."""
    with chat(echo, "--top-p", "2") as terminal:
        terminal.read_until(b"error: top_p")
        assert terminal.wait() == 2


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_one_message_with_status_130(unhurried: Server, state: dict[str, str]):
    """As any program that is interrupted; what came so far stays."""
    with chat(unhurried, "x" * 500, **state) as terminal:
        terminal.read_until(b"user")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
