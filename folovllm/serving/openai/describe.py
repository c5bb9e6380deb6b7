"""The OpenAPI description at /docs: groups of routes, a line for each field of a body, and examples. vLLM: none"""

from __future__ import annotations

from typing import Any

from folovllm.entrypoints.cli.parser import said_of
from folovllm.sampling_params import SamplingParams

_GROUPS = {
    "/v1/models": "the server",
    "/v1/": "answers",
    "/tokenize": "tokens",
    "/detokenize": "tokens",
    "/tokenizer_info": "tokens",
}
_FIELDS = {
    **said_of(SamplingParams),
    "model": "the name at /v1/models; may be left out",
    "messages": "the conversation",
    "prompt": "one text, several, or their token ids",
    "input": "a text, or the items of a conversation",
    "instructions": "a system message before the conversation",
    "max_completion_tokens": "the same as max_tokens",
    "max_output_tokens": "stop after this many new tokens",
    "n": "answers to one prompt",
    "best_of": "answers that are generated, of which the n likeliest come back",
    "stop": "a text that ends the answer, or several",
    "stop_token_ids": "tokens that end the answer",
    "include_stop_str_in_output": "keep the text that ended the answer",
    "skip_special_tokens": "leave tokens such as the end of a turn out of the text",
    "bad_words": "texts that the answer must not have",
    "allowed_token_ids": "the only tokens that the answer may have",
    "logit_bias": "token id to what is added to its logit, -100 to 100",
    "use_beam_search": "search the likeliest answers with best_of beams; not streamed",
    "length_penalty": "of beams: above 1 for longer ones",
    "logprobs": "log-probabilities: true in a chat, a number of tokens in a completion",
    "top_logprobs": "with logprobs: this many of the likeliest tokens, too",
    "prompt_logprobs": "as many for each token of the prompt",
    "stream": "send the answer as it is made, as events",
    "stream_options": "of a stream: include_usage counts the tokens at its end",
    "response_format": "a form: text, json_object, or json_schema with a schema",
    "structured_outputs": "a form: one of json, regex, choice, grammar, json_object",
    "text": "the form of the answer",
    "tools": "functions that the model may call",
    "tool_choice": "none, auto, required, or the function to call",
    "parallel_tool_calls": "false: one call at most",
    "reasoning_effort": "a variable of the chat template, where it has one",
    "add_generation_prompt": "begin the assistant's turn",
    "continue_final_message": "go on with the last message instead of answering it",
    "add_special_tokens": "put the tokenizer's own tokens, such as BOS, around the prompt",
    "chat_template": "a template instead of the model's, where the server takes one",
    "chat_template_kwargs": "other variables of the template, such as enable_thinking",
    "echo": "give the prompt back before the text",
    "cache_salt": "only prompts with the same salt find each other's cached blocks",
    "priority": "smaller is earlier, under --policy priority",
    "request_id": "the end of the answer's id",
    "return_token_ids": "add the ids of prompt and answer",
    "return_tokens_as_token_ids": "name tokens by their ids in log-probabilities",
    "return_token_strs": "add each token's text",
    "tokens": "token ids",
}
_QUESTION = [{"role": "user", "content": "What is prefix caching?"}]
_EXAMPLES: dict[str, dict[str, Any]] = {
    "ChatRequest": {"messages": _QUESTION, "temperature": 0, "max_tokens": 60},
    "CompletionRequest": {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0.8},
    "ResponsesRequest": {"input": "What is prefix caching?", "max_output_tokens": 60},
    "TokenizeRequest": {"prompt": "Once upon a time"},
    "DetokenizeRequest": {"tokens": [5, 6, 7]},
}


def group_of(path: str) -> str:
    return next((group for start, group in _GROUPS.items() if path.startswith(start)), "the server")


def describe_fields(schema: dict[str, Any], kind: type[Any]) -> None:
    """For pydantic: put lines and an example into the schema of a body."""
    if kind.__name__ not in _EXAMPLES:
        return  # parts of a body: their names say it
    for name, field in schema.get("properties", {}).items():
        if name in _FIELDS:
            field["description"] = _FIELDS[name].partition(" (default")[0]
    schema["examples"] = [_EXAMPLES[kind.__name__]]
