"""Who is to be refused is refused before anything is done for the prompt."""

import asyncio
import threading

import pytest

from tests.busy import PATIENCE_S
from tests.web.chat.test_run import turn
from tests.web.serving import serving
from weft.core.errors import Overloaded
from weft.web.chat.run import prepare_turn, run_turn
from weft.web.served import Served


class SlowTemplate:
    """A template that renders when it is told to."""

    source = ""

    def __init__(self):
        self.processes = self
        self.is_asked = threading.Event()
        self.may_end = threading.Event()
        self.num_asked = 0

    def prepare(self, *_args, **_kwargs):
        """There is nothing to render."""

    async def run_soon(self, begin):
        _, apart = begin()
        return await asyncio.to_thread(self.render), apart

    def render(self):
        self.num_asked += 1
        self.is_asked.set()
        assert self.may_end.wait(PATIENCE_S)
        return "hello"


def with_template(served, template):
    """The same engine behind another template."""
    return Served(
        client=served.client, tokenizer=served.tokenizer, chat_template=template, started_at=0
    )


async def test_a_request_holds_its_place_while_its_template_is_rendered():
    """Renderings wait for each other: at three times the load refusals stood in that line for seconds."""
    template = SlowTemplate()
    async with serving(max_num_queued_reqs=2) as served:
        slow = with_template(served, template)
        first = asyncio.create_task(prepare_turn(slow, turn(params={"n": 2})))
        await asyncio.to_thread(template.is_asked.wait, PATIENCE_S)
        with pytest.raises(Overloaded, match="max-num-queued-reqs"):
            await prepare_turn(slow, turn())
        template.may_end.set()
        prompt = await first
        assert template.num_asked == 1
        events = [event async for event in run_turn(slow, turn(params={"n": 2}), prompt)]
        assert len(events) > 2
