"""Around the engine: HTTP in the shape of OpenAI's interface, and several engines behind one server.

vLLM: entrypoints/openai/
"""
