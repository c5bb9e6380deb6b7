"""A request's life without a model: two sequences, a preemption, a fork, and one illegal step.

Run it: python examples/m0_state_machine.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import IllegalTransition, Request, SamplingParams, Sequence, SequenceStatus


def show(event: str, request: Request) -> None:
    sequences = "  ".join(f"{s.seq_id}={s.status.name}{s.data.output_token_ids}" for s in request.get_seqs())
    print(f"{event:42} request={request.status.name:22} {sequences}")


def main() -> None:
    # One prompt, two answers: a sequence for each, named after the request.
    request = Request("r", "Hi", [72, 105], SamplingParams(n=2))
    first, second = request.get_seqs()
    show("arrives", request)

    # The engine picks the first. The request's status follows: it is derived, nobody sets it.
    first.transition(SequenceStatus.RUNNING)
    first.add_token_id(11)
    show("the first gets a token", request)

    # Memory runs out: back to waiting. The tokens stay; their keys and values will be computed again.
    first.transition(SequenceStatus.WAITING)
    show("the first is preempted (recompute)", request)

    for sequence, token_id in ((first, 12), (second, 21)):
        sequence.transition(SequenceStatus.RUNNING)
        sequence.add_token_id(token_id)
    show("both run", request)

    # A fork has come as far as its parent, and neither sees what the other does from here on.
    fork: Sequence = first.fork("r-2")
    fork.add_token_id(99)
    print(f"\nfork {fork.data.output_token_ids}, parent {first.data.output_token_ids}: nothing is shared\n")

    # The table in request.py says where a sequence may go; everything else is refused.
    try:
        first.transition(SequenceStatus.RUNNING)
    except IllegalTransition as error:
        print(f"refused: {error}\n")

    first.transition(SequenceStatus.FINISHED_STOPPED)
    second.transition(SequenceStatus.FINISHED_LENGTH_CAPPED)
    show("both end", request)
    print(f"finish reasons: {[SequenceStatus.finish_reason(s.status) for s in request.get_seqs()]}")


if __name__ == "__main__":
    main()
