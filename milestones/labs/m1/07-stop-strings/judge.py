from folovllm.engine.output_processor import SequenceOutput
from folovllm.request import Sequence, SequenceData, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant


def output(text, *stops, **settings):
    """The text side of a running sequence that has said `text` so far."""
    params = SamplingParams(stop=list(stops), **settings)
    seq = Sequence("7-0", "7", SequenceData([1]), params, status=SequenceStatus.RUNNING)
    made = SequenceOutput(seq, None)
    made.text = text
    return made


@invariant(1)
def test_a_stop_string_is_found_across_tokens():
    out = output("and the END", "END")
    expect(out._cut_at_stop(num_added=1), True)  # the D is new


@invariant(1)
def test_it_may_be_followed_by_more():
    out = output("and the END of it", "END")
    expect(out._cut_at_stop(num_added=8), True)  # "ND of it" is new


@invariant(1)
def test_it_may_be_longer_than_the_text():
    out = output("END", "THE END", "END")
    expect(out._cut_at_stop(num_added=1), True)


@invariant(1)
def test_it_may_be_what_the_text_begins_with():
    out = output("END of", "END")
    expect(out._cut_at_stop(num_added=6), True)  # all of it is new


@invariant(2)
def test_the_text_is_cut_before_it():
    out = output("and the END of", "END")
    out._cut_at_stop(num_added=4)
    expect((out.text, out.seq.stop_reason), ("and the ", "END"))


@invariant(2)
def test_nothing_changes_where_none_is_found():
    out = output("and the EN", "END", "###")
    expect(out._cut_at_stop(num_added=1), False)
    expect((out.text, out.seq.stop_reason), ("and the EN", None))


@invariant(3)
def test_the_one_that_begins_first_counts():
    out = output("now stop!", "p!", "stop")
    out._cut_at_stop(num_added=2)
    expect((out.text, out.seq.stop_reason), ("now ", "stop"))


@invariant(4)
def test_it_stays_where_that_is_asked_for():
    out = output("and the END of", "END", include_stop_str_in_output=True)
    out._cut_at_stop(num_added=4)
    expect(out.text, "and the END")


@invariant(5)
def test_what_ended_before_is_not_found_again():
    out = output("the END.", "END")  # was let through, before min_tokens
    expect(out._cut_at_stop(num_added=1), False)  # the full stop is new


@invariant(6)
def test_the_end_is_held_back():
    out = output("and the E", "END")
    expect(out.shown_text(), "and the")


@invariant(6)
def test_all_of_a_text_that_is_shorter_than_that_is_held_back():
    out = output("and", "and so on")
    expect(out.shown_text(), "")


@invariant(6)
def test_nothing_is_held_back_without_stop_strings():
    out = output("and the E")
    expect(out.shown_text(), "and the E")


@invariant(6)
def test_all_is_shown_at_the_end():
    out = output("and the E", "END")
    out.seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
    expect(out.shown_text(), "and the E")
