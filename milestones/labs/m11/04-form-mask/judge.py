import numpy as np

from folovllm.sample.structured.grammars import Grammar, GrammarError, _State
from lab_judge import expect, invariant, raises

A, B, END = 3, 9, 11


class Matcher:
    """The form ab*: an a, then any number of b. A text may end behind the a."""

    def __init__(self, error=""):
        self.read, self.error = [], error

    def consume_token(self, token):
        self.read.append(token)
        return token == (A if len(self.read) == 1 else B)

    def is_accepting(self):
        return bool(self.read)

    def get_error(self):
        return self.error

    def deep_copy(self):
        return Matcher()

    def is_error(self):
        return False


class Compiler:
    eos_token_ids = frozenset({END})

    def mask(self, matcher):
        return np.array([1 << (B if matcher.read else A)], np.int32)


def allowed(tokens, ahead=(), vocab_size=12, compiler=Compiler):
    mask = Grammar(Matcher(), compiler()).allowed(tokens, list(ahead), vocab_size)
    return [int(token) for token in np.flatnonzero(mask)]


@invariant(1)
def test_each_token_is_read_once():
    state, tokens = _State([], Matcher()), [A]
    state.catch_up(tokens, frozenset({END}))
    tokens += [B, B]
    state.catch_up(tokens, frozenset({END}))
    expect((state.matcher.read, state.num_read), ([A, B, B], 3))


@invariant(2)
def test_the_end_is_not_the_matchers():
    state = _State([], Matcher())
    state.catch_up([A, END], frozenset({END}))
    expect((state.ended, state.matcher.read, state.num_read), (True, [A], 2))


@invariant(2)
def test_behind_the_end_nothing_is_read():
    state = _State([], Matcher())
    state.catch_up([A, END, 7, 7], frozenset({END}))
    state.catch_up([A, END, 7, 7, 7], frozenset({END}))
    expect((state.matcher.read, state.num_read), ([A], 2))


@invariant(2)
def test_there_may_be_several_ends():
    for end in (10, END):
        state = _State([], Matcher())
        state.catch_up([A, end], frozenset({10, END}))
        expect((state.ended, state.matcher.read), (True, [A]))


@invariant(2)
def test_the_tokens_stay_as_they_are():
    tokens = [A, END, 7]
    _State([], Matcher()).catch_up(tokens, frozenset({END}))
    expect(tokens, [A, END, 7])


@invariant(3)
def test_an_end_too_early_is_a_token_like_any_other():
    with raises(GrammarError, says="11"):
        _State([], Matcher()).catch_up([END], frozenset({END}))


@invariant(4)
def test_an_error_names_the_token_and_its_place():
    with raises(GrammarError, says="token 7 at place 2"):
        _State([], Matcher()).catch_up([A, B, 7], frozenset({END}))


@invariant(4)
def test_a_form_that_has_become_too_complex_is_told_apart():
    with raises(GrammarError, says="must be within bounds"):
        _State([], Matcher("too many items <state>")).catch_up([B], frozenset({END}))


@invariant(4)
def test_the_place_is_that_in_the_whole_text():
    state = _State([], Matcher())
    state.catch_up([A, B], frozenset({END}))
    with raises(GrammarError, says="token 7 at place 2"):
        state.catch_up([A, B, 7], frozenset({END}))


@invariant(4)
def test_whatever_else_the_matcher_says():
    with raises(GrammarError, says="token 9 at place 0"):
        _State([], Matcher("no such item")).catch_up([B], frozenset({END}))


@invariant(5)
def test_the_bits_are_a_mask_of_the_vocabulary():
    mask = Grammar(Matcher(), Compiler()).allowed([], [], 12)
    expect((mask.dtype == bool, mask.shape, np.flatnonzero(mask).tolist()), (True, (12,), [A]))


@invariant(5)
def test_tokens_ahead_count():
    expect(allowed([], ahead=[A]), [B, END])


@invariant(5)
def test_they_come_behind_the_others():
    expect(allowed([A], ahead=[B, END]), [END])


@invariant(5)
def test_a_vocabulary_of_two_words_of_bits():
    class Large(Compiler):
        def mask(self, matcher):
            return np.array([1 << A, 1 << 4], np.int32)

    expect(allowed([], vocab_size=40, compiler=Large), [A, 36])


@invariant(5)
def test_behind_the_end_no_token_continues():
    expect(allowed([A, END]), [END])


@invariant(5)
def test_the_next_step_has_a_mask_of_its_own():
    grammar, tokens = Grammar(Matcher(), Compiler()), []
    first = grammar.allowed(tokens, [], 12)
    again = grammar.allowed(tokens, [], 12)
    tokens.append(A)
    second = grammar.allowed(tokens, [], 12)
    expect([np.flatnonzero(mask).tolist() for mask in (first, again, second)], [[A], [A], [B, END]])


@invariant(5)
def test_what_is_ahead_is_not_put_into_the_list():
    tokens, ahead = [A], [B]
    Grammar(Matcher(), Compiler()).allowed(tokens, ahead, 12)
    expect((tokens, ahead), ([A], [B]))


@invariant(6)
def test_a_text_that_is_not_complete_may_not_end():
    expect(allowed([]), [A])


@invariant(6)
def test_a_complete_text_may_end_or_go_on():
    expect(allowed([A, B]), [B, END])


@invariant(6)
def test_ends_that_the_vocabulary_does_not_have_are_passed_over():
    class Two(Compiler):
        eos_token_ids = frozenset({END, 12, 40})

    expect(allowed([A], compiler=Two), [B, END])


@invariant(6)
def test_what_the_mask_says_of_an_end_does_not_count():
    class Loose(Compiler):
        def mask(self, matcher):
            return np.array([1 << A | 1 << END], np.int32)

    expect(allowed([], compiler=Loose), [A])


@invariant(6)
def test_all_ends_are_allowed():
    class Two(Compiler):
        eos_token_ids = frozenset({10, END})

    expect(allowed([A], compiler=Two), [B, 10, END])
