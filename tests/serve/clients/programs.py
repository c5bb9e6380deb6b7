"""Programs that others wrote, as clients of a server: `python programs.py URL NAME`.

They run in an environment of their own (`make clients`): two of them need an older openai than the other tests have.
No `from __future__ import annotations`: llama-index reads a tool's annotations where it cannot look names up.
"""

import sys
from typing import Literal

from pydantic import BaseModel, Field


class Pet(BaseModel, extra="forbid"):
    """A pet."""

    animal: Literal["cat", "狗"]
    age: int = Field(ge=0, le=20)


def double(number: Literal[1, 2, 3]) -> int:
    """Twice a number."""
    return 2 * number


def instructor(url: str) -> None:
    import instructor as library
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    for mode in (library.Mode.TOOLS, library.Mode.JSON_SCHEMA):
        patched = library.from_openai(client, mode=mode)
        messages = [{"role": "user", "content": "A pet?"}]
        pet = patched.chat.completions.create(
            model="embedded", messages=messages, response_model=Pet, max_retries=0, seed=3
        )
        assert isinstance(pet, Pet), (mode, pet)
    patched = library.from_openai(client, mode=library.Mode.TOOLS)
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "A pet?"}]
    for _ in range(2):
        about = {"model": "embedded", "max_retries": 0, "temperature": 0, "max_tokens": 99}
        pet, answer = patched.chat.completions.create_with_completion(messages=messages, response_model=Pet, **about)
        assert isinstance(pet, Pet)
        said = answer.choices[0].message
        result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "So it is."}
        messages += [said.model_dump(), result, {"role": "user", "content": "Another?"}]


def pydantic_ai(url: str) -> None:
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("embedded", provider=OpenAIProvider(base_url=url, api_key="none"))
    for output in (ToolOutput(Pet), NativeOutput(Pet)):
        result = Agent(model, output_type=output, retries=0).run_sync("A pet?", model_settings={"seed": 3})
        assert isinstance(result.output, Pet), result
    result = Agent(model).run_sync("Once", model_settings={"max_tokens": 8, "temperature": 0})
    assert result.usage.output_tokens > 0
    agent = Agent(model, output_type=ToolOutput(Pet), instructions="Be brief.", system_prompt="Of pets.", retries=0)
    first = agent.run_sync("A pet?", model_settings={"temperature": 0})
    again = agent.run_sync("Another?", message_history=first.all_messages(), model_settings={"temperature": 0})
    assert isinstance(again.output, Pet)
    assert len(again.all_messages()) > len(first.all_messages()) > 2


def litellm_messages(url: str) -> None:
    """Over /v1/messages, by litellm's own code for it: a call and its result, whole and in pieces."""
    import litellm as library

    library.suppress_debug_info = True  # it knows no price of this model, and says so
    about = {"model": "anthropic/embedded", "api_base": url.removesuffix("/v1"), "api_key": "none", "num_retries": 0}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a kernel?"}]
    whole = library.completion(messages=messages, max_tokens=8, temperature=0, **about).choices[0].message.content
    chunks = library.completion(messages=messages, max_tokens=8, temperature=0, stream=True, **about)
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    parameters = {"type": "object", "properties": {"number": {"enum": [1, 2, 3]}}, "required": ["number"]}
    parameters["additionalProperties"] = False
    tool = {"type": "function", "function": {"name": "double", "parameters": parameters}}
    asked = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 99, **about}
    answer = library.completion(messages=messages, **asked)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "double"
    result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
    more = [*messages, answer.choices[0].message, result, {"role": "user", "content": "And now?"}]
    again = library.completion(messages=more, **asked)
    assert again.choices[0].message.tool_calls
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens


def litellm(url: str) -> None:
    import litellm as library

    about = {"model": "hosted_vllm/embedded", "api_base": url, "api_key": "none", "num_retries": 0, "temperature": 0}
    messages = [{"role": "user", "content": "What is a kernel?"}]
    whole = library.completion(messages=messages, max_tokens=8, **about).choices[0].message.content
    chunks = library.completion(messages=messages, max_tokens=8, stream=True, **about)
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole
    schema = {"type": "json_schema", "json_schema": {"name": "pet", "schema": Pet.model_json_schema()}}
    answer = library.completion(messages=messages, response_format=schema, **about)
    Pet.model_validate_json(answer.choices[0].message.content)
    parameters = {"type": "object", "properties": {"number": {"enum": [1, 2, 3]}}, "required": ["number"]}
    parameters["additionalProperties"] = False
    about["parallel_tool_calls"] = False
    tool = {"type": "function", "function": {"name": "double", "parameters": parameters}}
    answer = library.completion(messages=messages, tools=[tool], tool_choice="required", **about)
    call, *_ = answer.choices[0].message.tool_calls
    assert call.function.name == "double"
    result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
    asked = [{"role": "developer", "content": "Be brief."}, *messages]
    for history in (answer.choices[0].message, answer.choices[0].message.model_dump()):
        more = [*asked, history, result, {"role": "user", "content": "And now?"}]
        again = library.completion(messages=more, tools=[tool], tool_choice="required", **about)
        assert again.choices[0].message.tool_calls
        assert again.usage.prompt_tokens > answer.usage.prompt_tokens


def llama_index(url: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model="embedded",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        max_tokens=64,
        temperature=0.0,
    )
    messages = [ChatMessage(role="user", content="A pet?")]
    whole = llm.chat(messages).message.content
    assert whole == "".join(part.delta or "" for part in llm.stream_chat(messages))
    tool = FunctionTool.from_defaults(double)
    answer = llm.chat_with_tools([tool], user_msg="Two times two?", tool_required=True)
    (call,) = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "double"
    assert tool(**call.tool_kwargs).raw_output in (2, 4, 6)
    assert isinstance(llm.as_structured_llm(Pet).chat(messages).raw, Pet)
    result = ChatMessage(role="tool", content="4", additional_kwargs={"tool_call_id": call.tool_id})
    history = [ChatMessage(role="system", content="Be brief."), *messages, answer.message, result]
    again = llm.chat_with_tools([tool], user_msg="Two times three?", chat_history=history, tool_required=True)
    assert llm.get_tool_calls_from_response(again)


def smolagents(url: str) -> None:
    from smolagents import OpenAIModel, ToolCallingAgent, tool
    from smolagents.agents import EMPTY_PROMPT_TEMPLATES

    @tool
    def double(number: Literal[1, 2, 3]) -> int:
        """Twice a number.

        Args:
            number: a small one
        """
        return 2 * number

    about = {"temperature": 0, "max_tokens": 64, "parallel_tool_calls": False}
    model = OpenAIModel("embedded", api_base=url, api_key="none", **about)
    brief = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": "Call tools. {{ custom_instructions }}"}  # theirs is too long
    agent = ToolCallingAgent([double], model, brief, instructions="Be brief.", max_steps=1, verbosity_level=-1)
    agent.tools = {"double": agent.tools["double"]}  # an answer of any length is no call that must come
    for task, reset in (("Twice two?", True), ("And twice that?", False)):
        agent.run(task, reset=reset)
    seen = [step.observations for step in agent.memory.steps if getattr(step, "tool_calls", None)]
    assert len(seen) == 2, agent.memory.steps
    assert {*seen} <= {"2", "4", "6"}


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
    print("ran to its end")
