import random
import re

from folovllm.mine.draft import propose
from lab_judge import expect, invariant, measure


def texts():
    """Records, stories and code, each a list of words and signs."""
    rng = random.Random(4)
    names, things = ["Anna", "Ben", "Zoe", "Nina"], ["boat", "kite", "lamp", "drum"]
    records = "".join(
        f'{{"id": {n}, "name": "{rng.choice(names)}", "likes": "{rng.choice(things)}", "age": {rng.randint(4, 9)}}}\n'
        for n in range(24)
    )
    story = "".join(
        f"Once upon a time {a} had a {b}. One day {a} lost the {b} in the wood. {a} asked {c}, and {c} found it. "
        for a, b, c in ((rng.choice(names), rng.choice(things), rng.choice(names)) for _ in range(14))
    )
    code = "".join(
        f"def {f}_{t}(self, x):\n    if x is None:\n        return self.{t}\n"
        f"    self.{t} = {f}(x, self.{t})\n    return x\n\n"
        for f in ("add", "cut", "mix", "sum")
        for t in rng.sample(things, 3)
    )
    return [re.findall(r"\w+|\W", text) for text in (records, story, code)]


def tokens_a_step():
    """The texts as a model would write them: right guesses are kept up to the first wrong one, and one token more."""
    steps = made = 0
    for text in texts():
        known = {word: number for number, word in enumerate(dict.fromkeys(text))}
        ids, at = [known[word] for word in text], 20
        while at < len(ids):
            guesses, right = list(propose(ids[:at], 4))[:4], 0
            while right < len(guesses) and at + right < len(ids) and guesses[right] == ids[at + right]:
                right += 1
            at, steps, made = at + right + 1, steps + 1, made + right + 1
    return made / steps


@invariant(1)
def test_at_most_four_guesses_that_are_tokens():
    guesses = propose([1, 2, 3, 4, 1, 2], 4)
    expect((len(guesses) <= 4, all(isinstance(guess, int) for guess in guesses)), (True, True))


@invariant(2)
def test_tokens_a_step_on_three_texts():
    measure(tokens_a_step(), at_least=3.54)
