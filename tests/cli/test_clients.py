"""`weft complete` and `weft chat` against a server that repeats the prompt, or one with a key."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import Server, here, running, streaming, weft
from tests.cli.terminal import Terminal
from tests.rpc.test_auth import make_pair
from weft.cli.chat.model_answer import Answer


@pytest.fixture(scope="module")
def echo() -> Iterator[Server]:
    """Answers with the prompt, so that the answer shows what was sent."""
    with running("embedded:echo", "--served-model-name", "parrot") as server:
        yield server


def test_complete_continues_the_text(echo: Server):
    """The answer and a line end on standard output, and nothing else."""
    result = here("complete", "once upon a time", "--address", echo.address)
    assert (result.returncode, result.stdout, result.stderr) == (0, "once upon a time\n", "")


def test_complete_reads_standard_input_without_an_argument(echo: Server):
    """It takes part in pipes."""
    assert weft("complete", "--address", echo.address, stdin="piped").stdout == "piped\n"


def test_the_address_may_come_from_the_environment(echo: Server):
    """WEFT_ADDRESS saves typing."""
    assert here("complete", "hello", WEFT_ADDRESS=echo.address).stdout == "hello\n"


def test_max_tokens_ends_the_answer(echo: Server):
    """embedded:echo has one token a byte."""
    result = here("complete", "abcdefgh", "--max-tokens", "3", "--address", echo.address)
    assert result.stdout == "abc\n"


def test_a_stop_text_ends_the_answer_before_it(echo: Server):
    """And may be given more than once."""
    argv = ("complete", "abcdefgh", "--stop", "xyz", "--stop", "ef", "--address", echo.address)
    assert here(*argv).stdout == "abcd\n"


def test_chat_renders_the_models_own_template(echo: Server):
    """The echo shows the prompt: system message, message, and the start of the answer."""
    result = here("chat", "hello", "--system", "Be brief.", "--address", echo.address)
    assert result.stdout.split() == ["system", "Be", "brief.", "user", "hello", "assistant"]


def test_chat_takes_a_pipe_as_one_message(echo: Server):
    """A file is one question, however many lines it has."""
    result = here("chat", "--address", echo.address, stdin="one\n\ntwo\n")
    assert result.stdout.split() == ["user", "one", "two", "assistant"]
    nothing = here("chat", "--address", echo.address, stdin="\n")
    assert (nothing.returncode, "the message must not be empty: give it" in nothing.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_a_url_of_another_kind_is_no_address_whether_or_not_there_is_a_message(command: str):
    """The command refuses it before it reads the message."""
    result = here(command, "--address", "ftp://127.0.0.1:8000", stdin="")
    assert result.returncode == 2
    assert "--address must be HOST:PORT or grpc://HOST:PORT of a gRPC port" in result.stderr


def test_an_answer_as_json_has_its_figures(echo: Server):
    """For scripts: one line, with what the API would say."""
    argv = ("abcdef", "--max-tokens", "3", "--json", "--address", echo.address)
    completed = json.loads(here("complete", *argv).stdout)
    usage = {"prompt_tokens": 6, "completion_tokens": 3}
    assert completed == {"text": "abc", "finish_reason": "length", "usage": usage}
    chatted = json.loads(here("chat", *argv).stdout)
    assert (chatted["model"], chatted["content"]) == ("parrot", "us")  # the first token is no text
    assert (chatted["reasoning"], chatted["finish_reason"]) == (None, "length")
    assert chatted["usage"]["completion_tokens"] == 3
    assert here("chat", "--json", stdin=" ").returncode == 2


@pytest.mark.parametrize("argv", [("complete", "a\x1b[2J\x9b6nb"), ("chat", "a\x1b[2J\x9b6nb")])
def test_an_answer_cannot_command_the_terminal(echo: Server, argv: tuple[str, ...]):
    """Its escape sequences are shown, not obeyed; a pipe gets them as they are."""
    with closing(Terminal(*argv, "--address", echo.address, TERM="xterm")) as terminal:
        shown = terminal.read_rest()
    assert b"a\xe2\x90\x9b[2J\xef\xbf\xbd6nb" in shown
    assert b"\x1b" not in shown
    piped = here(*argv, "--address", echo.address)
    assert "a\x1b[2J\x9b6nb" in piped.stdout


@pytest.mark.parametrize("command", ["complete", "chat"])
@pytest.mark.parametrize(
    ("address", "kind"), [("127.0.0.1:1", "gRPC"), ("http://127.0.0.1:1", "HTTP")]
)
def test_a_server_that_is_not_there_is_named(command: str, address: str, kind: str):
    """Status 1 and one line with the command that starts a server, within the time given."""
    result = here(command, "hello", "--address", address, "--connect-timeout", "0.5")
    assert result.returncode == 1
    assert result.stderr == (
        f"error: no {kind} server answers at {address}; start one with `weft serve MODEL`, "
        "or name another with --address\n"
    )


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
def test_an_http_address_gives_the_answer_of_the_grpc_port(echo: Server, suffix: str):
    """The text, the figures and the sampling options are the same."""
    over_grpc, over_http = f"grpc://{echo.address}", echo.http + suffix
    for argv in (
        ("complete", "abcdef", "--max-tokens", "3", "--json"),
        ("complete", "abcdef"),
        ("chat", "hello", "--system", "Be brief.", "--stop", "l"),
    ):
        expected = here(*argv, "-a", over_grpc)
        assert here(*argv, "-a", over_http).stdout == expected.stdout != ""
    figures = json.loads(here("chat", "hello", "--json", "-a", over_http).stdout)
    expected = json.loads(here("chat", "hello", "--json", "-a", over_grpc).stdout)
    for found in (figures, expected):
        found["usage"].pop("cached_tokens")
    assert figures == expected


def test_what_a_server_refuses_over_http_is_one_line(echo: Server):
    """The command shows the server's own sentence, with the status of a wrong request."""
    wrong = here("chat", "hello", "--temperature=-1", "-a", echo.http)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
    assert "temperature" in wrong.stderr
    unknown = here("chat", "hello", "--model", "nobody", "-a", echo.http)
    assert unknown.returncode == 2
    assert "nobody" in unknown.stderr
    assert (
        "--model needs an HTTP --address"
        in here("chat", "hello", "--model", "parrot", "-a", echo.address).stderr
    )


def test_the_speed_leaves_out_tokens_that_came_with_the_first_message():
    """A server joins tokens: thirty in a first message took no time that this side can see."""
    joined = Answer(num_tokens=40, num_first=30, began_at=1.0, first_at=2.0, last_at=3.0)
    assert joined.tokens_per_s == 10
    at_once = Answer(num_tokens=30, num_first=1, began_at=1.0, first_at=2.0, last_at=2.001)
    at_once.ended_at = 2.5
    assert at_once.tokens_per_s == 20


@pytest.mark.parametrize("command", ["complete", "chat"])
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--temperature=-1", "temperature"),
        ("--top-p=2", "top_p"),
        ("--max-tokens=0", "max_tokens"),
        ("--connect-timeout=0", "--connect-timeout"),
    ],
)
def test_a_bad_sampling_parameter_is_refused_by_name(
    echo: Server, command: str, flag: str, words: str
):
    """Status 2, as for every mistake in what was asked."""
    result = here(command, "hello", flag, "--address", echo.address)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_key_is_asked_for_and_taken():
    """Without it nothing is answered; from the environment it serves both sides."""
    with running("embedded:echo", WEFT_API_KEY="secret") as server:
        assert "key needed" in server.banner
        without = here("complete", "hello", "--address", server.address)
        with_key = here("complete", "hello", "--address", server.address, WEFT_API_KEY="secret")
    assert (without.returncode, without.stdout) == (1, "")
    assert (
        without.stderr
        == "error: the server requires an API key: set --api-key KEY or WEFT_API_KEY\n"
    )
    assert with_key.stdout == "hello\n"


@pytest.mark.slow
def test_tls_needs_the_certificate_to_trust(tmp_path: Path):
    """With it the answer comes; without it nothing is sent in the clear."""
    pair = make_pair(tmp_path, "server")
    argv = ("--grpc-tls-cert", str(pair.cert), "--grpc-tls-key", str(pair.key))
    with running("embedded:echo", *argv) as server:
        assert "(vllm.grpc.engine.VllmEngine; TLS, no key)" in server.banner
        complete = ("complete", "hello", "--address", server.address)
        trusting = here(*complete, "--grpc-tls-ca", str(pair.cert))
        plain = here(*complete, "--connect-timeout", "1")
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
