"""Instructor: objects of a class, by a tool that has to be called or by a schema."""

import instructor
import openai
from asking import CAPITAL, MODEL, address, refused, run
from pydantic import BaseModel, Field

base_url = f"{address()}/v1"
messages = [{"role": "user", "content": CAPITAL}]
asked = {"messages": messages, "max_retries": 0, "temperature": 0, "max_tokens": 200}


class Person(BaseModel):
    """Somebody."""

    age: int = Field(ge=0, le=120)
    is_tall: bool


def client(mode: instructor.Mode) -> instructor.Instructor:
    """One that asks in that way."""
    return instructor.from_provider(f"openai/{MODEL}", base_url=base_url, api_key="none", mode=mode)


def forced_tools() -> None:
    """Its usual way: the class is the only tool, and named."""
    made = client(instructor.Mode.TOOLS).create(response_model=Person, **asked)
    assert isinstance(made, Person)


def schema() -> None:
    """By response format."""
    made = client(instructor.Mode.JSON_SCHEMA).create(response_model=Person, **asked)
    assert isinstance(made, Person)


def streamed_tools() -> None:
    """An object that fills as it comes."""
    made = list(client(instructor.Mode.TOOLS).create_partial(response_model=Person, **asked))
    assert made[-1].age is not None
    assert made[-1].is_tall is not None


def errors() -> None:
    """Those of the package below, in its own wrapping."""
    stranger = instructor.from_provider("openai/nobody", base_url=base_url, api_key="none")
    kinds = (openai.NotFoundError, instructor.core.InstructorRetryException)
    assert "nobody" in str(refused(kinds, stranger.create, response_model=Person, **asked))


run(forced_tools, schema, streamed_tools, errors)
