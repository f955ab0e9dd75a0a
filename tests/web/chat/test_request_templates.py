"""Templates that come with requests: rendered where the server trusts them, within limits of their own."""

import asyncio
from contextlib import closing

import httpx2
import psutil
import pytest

from tests.busy import PATIENCE_S, until
from tests.web.serving import RANDOM, http_serving, serving
from weft.cli.serving.loading import make_served
from weft.core.errors import BadRequest
from weft.text.templates.chat import (
    MAX_TEMPLATE_CHARS,
    ChatTemplate,
    RequestTemplates,
    TemplateOptions,
)
from weft.text.templates.render_processes import RenderLimits
from weft.web.options import ApiOptions

SAID = [{"role": "user", "content": "hello"}]
MINE = "own: {{ messages[0]['content'] }} {{ bos_token }}"
PARTS = "{% for part in messages[0]['content'] %}[{{ part['text'] }}]{% endfor %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TRUSTING = ApiOptions(trust_request_chat_template=True)
BODIES = [
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 1}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 1}),
    ("/tokenize", {"messages": SAID}),
]


def prompt_length(answer: dict) -> int:
    if "count" in answer:
        return answer["count"]
    return answer["usage"].get("prompt_tokens") or answer["usage"]["input_tokens"]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_request_brings_its_template(path, body):
    """Its length shows: the prompt is what that template writes, and nothing else."""
    async with (
        serving(RANDOM, options=TRUSTING, template=MINE) as served,
        http_serving(served) as url,
        httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
    ):
        answers = [
            (await client.post(path, json=body | {"chat_template": "x" * length})).json()
            for length in (7, 9)
        ]
    first, second = map(prompt_length, answers)
    assert second - first == 2


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_request_s_template_kwargs_replace_the_server_s_defaults(path, body):
    """Every API renders with the defaults, the model's template and the request's alike."""
    options = ApiOptions(
        default_chat_template_kwargs='{"pad": "1234567", "end": "!"}',
        trust_request_chat_template=True,
    )
    template = "{{ pad }}{{ end }}"
    bodies = [
        {},
        {"chat_template_kwargs": {"pad": "123456789"}},
        {"chat_template": template + "1234"},
    ]
    async with serving(RANDOM, template=template) as one:
        served = make_served(one.client, one.tokenizer, template, options)
        async with (
            http_serving(served) as url,
            httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
        ):
            answers = [(await client.post(path, json=body | more)).json() for more in bodies]
    plain, longer, own = map(prompt_length, answers)
    assert (longer - plain, own - plain) == (2, 4)


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_without_the_flag_a_template_is_refused_by_name(echoing, path, body):
    """And the answer says which flag it takes."""
    async with (
        http_serving(echoing) as url,
        httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
    ):
        answer = await client.post(path, json=body | {"chat_template": "x"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template"
    assert "--trust-request-chat-template" in answer.text


async def test_a_model_without_template_takes_one():
    """There is nothing that it would take the place of."""
    async with (
        serving(RANDOM, runner="pooling", options=TRUSTING) as served,
        http_serving(served) as url,
        httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
    ):
        asked = {"messages": SAID, "chat_template": "{{ messages[0].content }}"}
        assert (await client.post("/v1/embeddings", json=asked)).status_code == 200
        asked = {"input": "a", "chat_template": "x"}
        refused = await client.post("/v1/embeddings", json=asked)
    assert refused.json()["error"]["param"] == "chat_template"


@pytest.fixture
def templates():
    """Those of requests, which may take half a second."""
    made = RequestTemplates(
        {"bos_token": "<s>"}, TemplateOptions(limits=RenderLimits(time_limit_s=0.5))
    )
    yield made
    made.close()


def test_it_renders_like_the_models_own(templates):
    """The same text, special tokens and form of contents."""
    for source in (MINE, PARTS):
        said = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
        with ChatTemplate(source, {"bos_token": "<s>"}) as own:
            assert templates.open(source).render(said) == own.render(said)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "TemplateSyntaxError"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), "characters"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        (ENDLESS, "did not finish"),
        ("{{ 'a' * 10**10 }}", "failed"),
    ],
)
def test_what_a_template_does_wrong_is_its_callers_error(templates, source, message):
    """And the next one is rendered as if nothing had been."""
    with pytest.raises(BadRequest, match=message):
        templates.open(source).render(SAID)
    assert templates.open(MINE).render(SAID) == "own: hello <s>"


async def test_one_that_hangs_holds_up_its_like_alone():
    """The model's own template is rendered meanwhile, by a process of its own."""
    patient = RenderLimits(time_limit_s=PATIENCE_S)
    with (
        ChatTemplate(MINE, {"bos_token": "<s>"}) as own,
        closing(RequestTemplates({}, TemplateOptions(limits=patient))) as templates,
    ):
        own.render(SAID)
        others = set(psutil.Process().children())

        def hang():
            with pytest.raises(BadRequest):
                templates.open(ENDLESS).render(SAID)

        hanging = asyncio.create_task(asyncio.to_thread(hang))
        await until(lambda: set(psutil.Process().children()) != others)
        assert await asyncio.to_thread(own.render, SAID) == "own: hello <s>"
        assert not hanging.done()
        (process,) = set(psutil.Process().children()) - others
        process.kill()
        await hanging
