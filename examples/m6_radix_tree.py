"""A radix tree over token ids, printed after each prompt: an edge is split where a prompt leaves it in its middle.

Run it: python examples/m6_radix_tree.py
"""

from __future__ import annotations

from itertools import takewhile


class Node:
    """`tokens` is the edge that leads here; the edges that go on from here differ in their first tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.children: dict[int, Node] = {}

    def insert(self, tokens: list[int]) -> int:
        """Below this node. Returns how many of the tokens were there already."""
        if not tokens:
            return 0
        child = self.children.get(tokens[0])
        if child is None:
            self.children[tokens[0]] = Node(tokens)
            return 0
        pairs = zip(child.tokens, tokens, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if shared < len(child.tokens):
            upper = Node(child.tokens[:shared])
            child.tokens = child.tokens[shared:]
            upper.children[child.tokens[0]] = child
            self.children[tokens[0]] = child = upper
        return shared + child.insert(tokens[shared:])

    def lines(self, depth: int = 0) -> list[str]:
        below = [line for child in self.children.values() for line in child.lines(depth + 1)]
        return ["   " * depth + " ".join(map(str, self.tokens)), *below]


PROMPTS = {
    "A": [1, 2, 3, 4, 5, 6],
    "B": [1, 2, 3, 4, 7, 8],
    "C": [1, 2, 9],
    "A again, longer": [1, 2, 3, 4, 5, 6, 10, 11],
}

if __name__ == "__main__":
    root = Node([])
    for name, prompt in PROMPTS.items():
        print(f"{name}: {root.insert(prompt)} of {len(prompt)} tokens found")
        print("\n".join(line for child in root.children.values() for line in child.lines(1)))
