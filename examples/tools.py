"""Let the model call a function, run it, and have the model answer with what it returned.

    weft serve
    pip install openai
    python examples/tools.py --required --stream

A server finds the form of a model's calls in its chat template; --tool-call-parser names another.
"""

import argparse
import json
import os
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageToolCall

QUESTION = "What is the weather in Paris?"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def get_weather(city: str) -> str:
    """What the model may call."""
    return json.dumps({"city": city, "temperature": 21, "condition": "sunny"})


FUNCTIONS = {"get_weather": get_weather}


def read_stream(stream: Any) -> tuple[str, list[dict[str, Any]]]:
    """Reasoning and calls of a streamed answer.

    Each call has an index; its id and name come once, its arguments in pieces.
    """
    reasoning = ""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in stream:
        reasoning += getattr(chunk.choices[0].delta, "reasoning", None) or ""
        for delta in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(
                delta.index, {"type": "function", "function": {"name": "", "arguments": ""}}
            )
            if delta.id:
                call["id"] = delta.id
            call["function"]["name"] += delta.function.name or ""
            call["function"]["arguments"] += delta.function.arguments or ""
    return reasoning, list(calls.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream", action="store_true", help="read the calls as they come")
    parser.add_argument("--required", action="store_true", help="the model has to call something")
    parser.add_argument("--thinking", action="store_true", help="and may reason first")
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = client.models.list().data[0].id
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        tool_choice="required" if args.required else "auto",
        stream=args.stream,
        temperature=0,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}} if args.thinking else None,
    )
    if args.stream:
        reasoning, calls = read_stream(answer)
    else:
        reasoning = getattr(answer.choices[0].message, "reasoning", None) or ""
        calls = [
            call.model_dump()
            for call in answer.choices[0].message.tool_calls or []
            if isinstance(call, ChatCompletionMessageToolCall)
        ]
    if reasoning:
        print(f"reasoning: {reasoning.strip()}")
    if not calls:
        print("the model called nothing")
        return
    messages.append({"role": "assistant", "tool_calls": calls})
    for call in calls:
        function = call["function"]
        result = FUNCTIONS[function["name"]](**json.loads(function["arguments"]))
        print(f"{function['name']}({function['arguments']}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    last = client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, temperature=0
    )
    print(last.choices[0].message.content)


if __name__ == "__main__":
    main()
