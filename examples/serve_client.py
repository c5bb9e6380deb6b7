"""Talk to `folovllm serve` with the `openai` package: a stream, then an answer held to a JSON schema.

folovllm serve &
pip install openai && python examples/serve_client.py
"""

import sys

from openai import OpenAI

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{URL}/v1", api_key="none")

stream = client.chat.completions.create(
    model="embedded",
    messages=[{"role": "user", "content": "What is prefix caching?"}],
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content, end="")
print(f"\n{chunk.usage.completion_tokens} tokens\n")

schema = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Mimi", "豆豆"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 20},
        "likes": {"type": "array", "items": {"enum": ["fish", "sleep", "阳光"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model="embedded",
    messages=[{"role": "user", "content": "Describe a cat."}],
    n=3,
    seed=1,
    response_format={"type": "json_schema", "json_schema": {"name": "cat", "schema": schema}},
)
for choice in answer.choices:
    print(choice.message.content)
