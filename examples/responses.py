"""The Responses API: a call of a function, its result given back, and what the model says then.

weft serve
pip install openai
python examples/responses.py
"""

import json
import os
from typing import Any

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class Weather(BaseModel):
    """Get the weather in a city"""

    city: str

    def report(self) -> str:
        """What the model's call comes to."""
        return json.dumps({"city": self.city, "temperature": 21, "condition": "sunny"})


# The tool is what the class says of itself; the Responses API has no "function" around it.
TOOLS: list[Any] = [
    {"type": "function", **pydantic_function_tool(Weather, name="get_weather")["function"]}
]


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = client.models.list().data[0].id
    items: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    response = client.responses.create(
        model=model, input=items, tools=TOOLS, tool_choice="required", temperature=0
    )
    # All that the model wrote goes back to it, reasoning too: the server holds nothing of a conversation
    # unless previous_response_id says which.
    items += response.output
    for item in response.output:
        if item.type == "function_call":
            result = Weather.model_validate_json(item.arguments).report()
            print(f"{item.name}({item.arguments}) = {result}")
            items.append(
                {"type": "function_call_output", "call_id": item.call_id, "output": result}
            )
    response = client.responses.create(model=model, input=items, tools=TOOLS, temperature=0)
    print(response.output_text)


if __name__ == "__main__":
    main()
