"""`folovllm chat`: a conversation in the terminal.

The whole history goes to the model with each turn; when it no longer fits, the oldest turns are forgotten,
and the user is told so.

vLLM: entrypoints/cli/openai.py (ChatCommand)
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from folovllm.entrypoints.cli.parser import (
    add_model_arguments,
    add_sampling_arguments,
    model_kwargs,
    sampling_params,
)

if TYPE_CHECKING:
    from folovllm.entrypoints.llm import LLM

HELP = "/reset forgets the conversation · /quit (or Ctrl-D) ends · Ctrl-C stops an answer · /help shows this"
Message = dict[str, str]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk with a model",
        description=f"A conversation in the terminal. {HELP}.",
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    add_model_arguments(parser)
    add_sampling_arguments(parser, max_tokens=512, temperature=None)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.temperature is None:
        # The embedded model knows a few definitions by heart; random draws would only make its answers worse.
        args.temperature = 0.0 if args.model == "embedded" else 0.7
    params = sampling_params(args)
    kwargs = model_kwargs(args)

    from folovllm.entrypoints.cli.session import load_llm, notes, print_stream

    if sys.stdin is None:
        raise ValueError("chat reads stdin, which is closed")
    conversation = Conversation(load_llm(kwargs), args.system, params.max_tokens)
    notes.print(HELP, style="dim")
    while (line := _read_line()) is not None:
        text = line.strip()
        if not text:
            continue
        if text.startswith("/"):
            if text in ("/quit", "/exit"):
                break
            if text == "/reset":
                conversation.reset()
                notes.print("forgotten: a new conversation", style="dim")
            else:
                unknown = "" if text == "/help" else f"unknown command: {text} · "
                notes.print(unknown + HELP, style="dim", markup=False)
            continue
        try:
            prompt, forgotten = conversation.ask(text)
        except ValueError as error:
            notes.print(f"error: {error}", style="red", markup=False)
            continue
        if forgotten:
            notes.print(
                f"no longer fits in {conversation.max_model_len} tokens: the oldest {forgotten} of "
                f"{forgotten + len(conversation.turns) // 2} exchanges forgotten",
                style="yellow",
            )
        answer = print_stream(conversation.llm.engine.generate_stream(prompt, params))
        conversation.answer(answer.text)
        stopped = {"abort": "stopped · ", "length": "cut off · "}.get(answer.finish_reason or "", "")
        notes.print(stopped + answer.summary(), style="dim")
    return 0


class Conversation:
    """The messages so far, kept short enough that the model has room to answer."""

    def __init__(self, llm: LLM, system: str | None, max_tokens: int | None) -> None:
        self.llm = llm
        self.max_model_len = llm.engine.max_model_len
        # Room kept for the answer: what was asked for, but never more than a quarter of what there is.
        quarter = max(1, self.max_model_len // 4)
        self.room = min(max_tokens or quarter, quarter)
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self.reset()
        # Fails here, and not after the first question, if the model has no chat template.
        self._encode([{"role": "user", "content": ""}])

    def reset(self) -> None:
        self.turns: list[Message] = []  # user and assistant, in turn

    def ask(self, text: str) -> tuple[Any, int]:
        """The prompt for the history and this message, and how many old turns had to go for it.

        Raises:
            ValueError: the message alone leaves no room for an answer; the history stays as it was.
        """
        turns = [*self.turns, {"role": "user", "content": text}]
        forgotten = 0
        while len((prompt := self._encode(turns))["prompt_token_ids"]) + self.room > self.max_model_len:
            if len(turns) == 1:
                raise ValueError(
                    f"the message has {len(prompt['prompt_token_ids'])} tokens with what goes around it, "
                    f"and at most {self.max_model_len - self.room} leave room for an answer: shorten it"
                )
            turns = turns[2:]
            forgotten += 1
        self.turns = turns
        return prompt, forgotten

    def answer(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def _encode(self, turns: list[Message]) -> Any:
        from folovllm.engine.input_processor import chat_to_prompt

        return chat_to_prompt(self.llm.get_tokenizer(), self._opening + turns)


def _read_line() -> str | None:
    """A line from the user, None at the end of the input. Ctrl-C at the prompt drops what was typed."""
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  makes input() edit lines and remember them
    while True:
        try:
            return input("\n> " if interactive else "")
        except EOFError:
            if interactive:
                print(file=sys.stderr)  # Ctrl-D leaves the cursor behind the prompt
            return None
        except KeyboardInterrupt:
            print("\n(/quit or Ctrl-D ends)", file=sys.stderr)
