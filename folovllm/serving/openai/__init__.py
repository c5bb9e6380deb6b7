"""The engine behind HTTP, in the shape of OpenAI's interface. Needs the extra `serve`."""
