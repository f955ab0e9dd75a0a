"""Tools of an MCP server, which the model's server lists and calls by itself.

    pip install "mcp>=2.3" openai -e ".[mcp]"
    python examples/responses_mcp.py serve
    weft serve --tool-server weather=http://127.0.0.1:8888/mcp
    python examples/responses_mcp.py ask

What a request may reach is up to the server's operator: docs/tools.md.
"""

import argparse
import json
import os

from openai import OpenAI


def serve(port: int) -> None:
    """An MCP server with one tool."""
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - who asks needs no mcp

    server = MCPServer("weather")

    @server.tool()
    def get_weather(city: str) -> str:
        """Get the weather in a city"""
        return json.dumps({"city": city, "temperature": 21, "condition": "sunny"})

    server.run("streamable-http", port=port)


def ask() -> None:
    """The calls that were made, and the answer."""
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    response = client.responses.create(
        model=client.models.list().data[0].id,
        input="What is the weather in Paris?",
        tools=[
            {
                "type": "mcp",
                "server_label": "weather",
                "allowed_tools": ["get_weather"],
                "require_approval": "never",
            }
        ],
        temperature=0,
    )
    for item in response.output:
        if item.type == "mcp_call":
            print(f"{item.name}({item.arguments}) = {item.output}")
    print(response.output_text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["serve", "ask"])
    parser.add_argument("--port", type=int, default=8888, help="of the MCP server")
    args = parser.parse_args()
    if args.part == "serve":
        serve(args.port)
    else:
        ask()


if __name__ == "__main__":
    main()
