"""Pydantic AI's agents."""

from asking import ANSWER, CAPITAL, MODEL, RESULT, WEATHER, address, is_told, refused, run
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

settings = {"temperature": 0.0, "max_tokens": 200}


def provider() -> OpenAIProvider:
    """A client of its own for each event loop that an agent makes."""
    return OpenAIProvider(
        openai_client=AsyncOpenAI(base_url=f"{address()}/v1", api_key="none", max_retries=0)
    )


def model() -> OpenAIChatModel:
    """The chat API."""
    return OpenAIChatModel(MODEL, provider=provider())


class Person(BaseModel):
    """Somebody."""

    age: int = Field(ge=0, le=120)
    is_tall: bool


def chat() -> None:
    """An answer with its usage."""
    made = Agent(model(), model_settings=settings).run_sync(CAPITAL)
    assert ANSWER in made.output
    assert made.usage.output_tokens > 0


def stream() -> None:
    """Text grows."""
    made = Agent(model(), model_settings=settings).run_stream_sync(CAPITAL)
    texts = list(made.stream_text(debounce_by=None))
    assert ANSWER in texts[-1]


def _weather_agent(api: OpenAIChatModel | OpenAIResponsesModel) -> Agent:
    agent = Agent(api, model_settings=settings)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        assert city == "Oslo"
        return RESULT

    return agent


def tools() -> None:
    """The agent calls the function and feeds back what it gives."""
    made = _weather_agent(model()).run_sync(WEATHER)
    parts = [part for message in made.all_messages() for part in message.parts]
    assert [part.tool_name for part in parts if isinstance(part, ToolCallPart)] == ["get_weather"]
    assert is_told(made.output)


def forced_tools() -> None:
    """Its way to an object: a tool that has to be called."""
    agent = Agent(model(), output_type=ToolOutput(Person), model_settings=settings)
    assert isinstance(agent.run_sync(CAPITAL).output, Person)


def schema() -> None:
    """By response format."""
    agent = Agent(model(), output_type=NativeOutput(Person), model_settings=settings)
    assert isinstance(agent.run_sync(CAPITAL).output, Person)


def errors() -> None:
    """Its own class, with our status and body."""
    stranger = Agent(OpenAIChatModel("nobody", provider=provider()))
    error = refused(ModelHTTPError, stranger.run_sync, CAPITAL)
    assert error.status_code == 404
    assert error.body["code"] == "model_not_found"


def responses() -> None:
    """The newer API, with a call."""
    newer = OpenAIResponsesModel(MODEL, provider=provider())
    assert ANSWER in Agent(newer, model_settings=settings).run_sync(CAPITAL).output
    assert is_told(_weather_agent(newer).run_sync(WEATHER).output)


run(chat, stream, tools, forced_tools, schema, errors, responses)
