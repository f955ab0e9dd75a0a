"""What a server answers goes back into its own template: the next turn is never refused for the last one."""

import re

from tests.text.template_patterns import pattern, published_facts
from tests.web.chat.test_run import tool, turn
from tests.web.serving import ECHO, serving
from weft.web.chat.fold import fold
from weft.web.chat.run import run_turn
from weft.web.options import ApiOptions

# Says what the first message says, where there is no other; then it is a template as Mistral's are.
MISTRAL = (
    "{% if messages | length == 1 %}{{ messages[0].content }}{% else %}"
    + pattern(published_facts()["mistralai-Mistral-Nemo-Instruct-2407"])
    + "{% endif %}"
)


async def test_mistrals_template_takes_the_calls_that_its_parser_made():
    """Ids have nine letters and digits, whatever prefix the API has for others."""
    asked = {"role": "user", "content": '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'}
    options = ApiOptions(tool_call_parser="mistral", enable_auto_tool_choice=True)
    async with serving(ECHO, options=options, template=MISTRAL) as served:
        first = await fold(run_turn(served, turn([asked], tools=(tool(),))))
        (call,) = first.answers[0].calls
        assert re.fullmatch("[a-zA-Z0-9]{9}", call.id)
        function = {"name": call.name, "arguments": call.arguments}
        history = [
            asked,
            {"role": "assistant", "tool_calls": [{"id": call.id, "function": function}]},
            {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"},
            {"role": "user", "content": "And tomorrow?"},
        ]
        second = await fold(run_turn(served, turn(history, tools=(tool(),))))
        assert "[city=Paris]" in second.prompt
        assert "18 degrees" in second.prompt
