"""langchain-openai as a client: tools that are bound, and answers of a class, by the functions that it calls."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.serve.support import Running


class Owner(BaseModel):
    """Who has the pet."""

    name: Literal["Ann", "Bob"]


class Pet(BaseModel):
    """A pet."""

    animal: Literal["cat", "狗"]
    age: int = Field(ge=0, le=20)
    owner: Owner


def double(number: Literal[1, 2, 3]) -> int:
    """Twice a number."""
    return 2 * number


def model(server: Running, **more: Any) -> Any:
    return ChatOpenAI(
        **{"model": "embedded", "base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0, "seed": 3, **more}
    )


@pytest.mark.parametrize("strict", [None, True])
def test_an_answer_is_of_the_class_that_was_asked_for(server: Running, strict: bool | None) -> None:
    asked = model(server).with_structured_output(Pet, method="function_calling", strict=strict)
    assert isinstance(asked.invoke("A pet?"), Pet)


@pytest.mark.parametrize("choice", ["any", "double"])
def test_a_bound_tool_is_called_and_its_result_goes_back(server: Running, choice: str) -> None:
    bound = model(server).bind_tools([double], tool_choice=choice, parallel_tool_calls=False)
    answer = bound.invoke("Two times two?")
    (call,) = answer.tool_calls
    assert call["name"] == "double"
    result = {"role": "tool", "tool_call_id": call["id"], "content": str(double(**call["args"]))}
    said = model(server, max_tokens=8).bind_tools([double], tool_choice="none").invoke(["Two?", answer, result])
    assert said.tool_calls == []
    assert isinstance(said.content, str)


def test_a_streamed_call_adds_up(server: Running) -> None:
    bound = model(server).bind_tools([double], tool_choice="double")
    first, *others = bound.stream("Two times two?")
    for chunk in others:
        first += chunk
    ((name, args),) = [(call["name"], call["args"]) for call in first.tool_calls]
    assert name == "double"
    assert args["number"] in (1, 2, 3)
