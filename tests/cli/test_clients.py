"""`weft complete` and `weft chat` against a server that repeats the prompt, or one with a key."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, Server, clean_environment, running, streaming, weft
from tests.rpc.test_auth import make_pair


@pytest.fixture(scope="module")
def echo() -> Iterator[Server]:
    """Answers with the prompt, so that the answer shows what was sent."""
    with running("embedded:echo", "--served-model-name", "parrot") as server:
        yield server


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Children take SIGINT, even where the tests run in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_complete_continues_the_text(echo: Server):
    """The answer and a line end on standard output, and nothing else."""
    result = weft("complete", "once upon a time", "--address", echo.address)
    assert (result.returncode, result.stdout, result.stderr) == (0, "once upon a time\n", "")


def test_complete_reads_standard_input_without_an_argument(echo: Server):
    """It takes part in pipes."""
    assert weft("complete", "--address", echo.address, stdin="piped").stdout == "piped\n"


def test_the_address_may_come_from_the_environment(echo: Server):
    """WEFT_ADDRESS saves typing."""
    assert weft("complete", "hello", WEFT_ADDRESS=echo.address).stdout == "hello\n"


def test_max_tokens_ends_the_answer(echo: Server):
    """embedded:echo has one token a byte."""
    result = weft("complete", "abcdefgh", "--max-tokens", "3", "--address", echo.address)
    assert result.stdout == "abc\n"


def test_a_stop_text_ends_the_answer_before_it(echo: Server):
    """And may be given more than once."""
    argv = ("complete", "abcdefgh", "--stop", "xyz", "--stop", "ef", "--address", echo.address)
    assert weft(*argv).stdout == "abcd\n"


def test_chat_renders_the_models_own_template(echo: Server):
    """The echo shows the prompt: system message, message, and the start of the answer."""
    result = weft("chat", "hello", "--system", "Be brief.", "--address", echo.address)
    assert result.stdout.split() == ["system", "Be", "brief.", "user", "hello", "assistant"]


def test_chat_takes_each_line_of_a_pipe_as_a_message(echo: Server):
    """The second prompt holds the first exchange."""
    result = weft("chat", "--address", echo.address, stdin="one\n\ntwo\n")
    words = result.stdout.split()
    first = ["user", "one", "assistant"]
    assert words == [*first, *first, *first, "user", "two", "assistant"]


@pytest.mark.parametrize("argv", [("complete", "a\x1b[2J\x9b6nb"), ("chat", "a\x1b[2J\x9b6nb")])
def test_an_answer_cannot_command_the_terminal(echo: Server, argv: tuple[str, ...]):
    """Its escape sequences are shown, not obeyed; a pipe gets them as they are."""
    leader, follower = pty.openpty()
    environment = clean_environment()
    command = [*WEFT, *argv, "--address", echo.address]
    with os.fdopen(leader, "rb", buffering=0) as screen, os.fdopen(follower, "wb") as terminal:
        subprocess.run(command, stdout=terminal, timeout=PATIENCE_S, env=environment, check=True)
        shown = screen.read(2**16)
    assert b"a\xe2\x90\x9b[2J\xef\xbf\xbd6nb" in shown
    assert b"\x1b" not in shown
    piped = weft(*argv, "--address", echo.address)
    assert "a\x1b[2J\x9b6nb" in piped.stdout


@pytest.mark.parametrize("command", ["complete", "chat"])
def test_a_server_that_is_not_there_is_named(command: str):
    """Status 1 and one line, within the time given."""
    result = weft(command, "hello", "--address", "127.0.0.1:1", "--connect-timeout", "0.5")
    assert result.returncode == 1
    assert result.stderr == "error: no gRPC server answers at 127.0.0.1:1\n"


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--temperature=-1", "temperature"),
        ("--top-p=2", "top_p"),
        ("--max-tokens=0", "max_tokens"),
        ("--connect-timeout=0", "--connect-timeout"),
    ],
)
def test_a_bad_sampling_parameter_is_refused_by_name(echo: Server, flag: str, words: str):
    """Status 2, as for every mistake in what was asked."""
    result = weft("complete", "hello", flag, "--address", echo.address)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_key_is_asked_for_and_taken():
    """Without it nothing is answered; from the environment it serves both sides."""
    with running("embedded:echo", WEFT_API_KEY="secret") as server:
        assert "key needed" in server.banner
        without = weft("complete", "hello", "--address", server.address)
        with_key = weft("complete", "hello", "--address", server.address, WEFT_API_KEY="secret")
    assert (without.returncode, without.stdout) == (1, "")
    assert without.stderr == "error: the server needs a key: --api-key KEY or WEFT_API_KEY\n"
    assert with_key.stdout == "hello\n"


def test_tls_needs_the_certificate_to_trust(tmp_path: Path):
    """With it the answer comes; without it nothing is sent in the clear."""
    pair = make_pair(tmp_path, "server")
    argv = ("--grpc-tls-cert", str(pair.cert), "--grpc-tls-key", str(pair.key))
    with running("embedded:echo", *argv) as server:
        assert "(vllm.grpc.engine.VllmEngine; TLS, no key)" in server.banner
        complete = ("complete", "hello", "--address", server.address)
        trusting = weft(*complete, "--grpc-tls-ca", str(pair.cert))
        plain = weft(*complete, "--connect-timeout", "1")
    assert trusting.stdout == "hello\n"
    assert (plain.returncode, plain.stdout) == (1, "")


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_complete_and_its_request():
    """What came so far stays on the screen; the server is free again."""
    with (
        running("embedded:echo?itl_ms=50") as server,
        streaming(server.address, "word " * 100) as (client, first),
    ):
        client.send_signal(signal.SIGINT)
        rest, err = client.communicate(timeout=PATIENCE_S)
        assert (first + rest).startswith(b"wo") or first + rest == b"w\n"
        assert (client.returncode, err) == (130, b"")


class Terminal:
    """`weft chat` in a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        self._screen, theirs = pty.openpty()
        self._unread = b""
        self.process = subprocess.Popen(
            [*WEFT, "chat", *argv],
            stdin=theirs, stdout=theirs, stderr=theirs, env=clean_environment(TERM="dumb"),
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: bytes) -> None:
        os.write(self._screen, text)

    def read_until(self, text: bytes) -> None:
        while text not in self._unread:
            self._unread += os.read(self._screen, 1024)
        self._unread = self._unread.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_an_answer_but_not_the_conversation():
    """In a terminal: an answer is stopped, the next message is answered, Ctrl-D leaves."""
    with (
        running("embedded:echo?itl_ms=10") as server,
        closing(Terminal("--address", server.address)) as terminal,
    ):
        terminal.read_until(b"> ")
        terminal.type(b"abcdefghijklmnopqrstuvwxyz" * 5 + b"\n")
        terminal.read_until(b"user\r\nabc")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until(b"[stopped]")
        terminal.read_until(b"> ")
        terminal.type(b"!\n")
        terminal.read_until(b"assistant")
        terminal.read_until(b"> ")
        terminal.type(b"\x04")
        assert terminal.process.wait(timeout=PATIENCE_S) == 0
