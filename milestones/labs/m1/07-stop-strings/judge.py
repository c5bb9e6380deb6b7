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
def test_ending_the_sequence_is_the_caller_s_business():
    out = output("and the END of", "END", "###")
    out._cut_at_stop(num_added=4)
    expect((out.seq.status.name, out.stops), ("RUNNING", ["END", "###"]))


@invariant(2)
def test_a_full_stop_is_no_pattern():
    out = output("and the", ".")
    expect(out._cut_at_stop(num_added=3), False)


@invariant(2)
def test_nothing_changes_where_none_is_found():
    out = output("and the EN", "END", "###")
    expect(out._cut_at_stop(num_added=1), False)
    expect((out.text, out.seq.stop_reason), ("and the EN", None))


@invariant(2)
def test_so_it_is_with_a_reason_from_before():
    out = output("and the EN", "END")
    out.seq.stop_reason = "a reason from before"
    out._cut_at_stop(num_added=1)
    expect(out.seq.stop_reason, "a reason from before")


@invariant(3)
def test_the_one_that_begins_first_counts():
    out = output("now stop!", "p!", "stop")
    out._cut_at_stop(num_added=2)
    expect((out.text, out.seq.stop_reason), ("now ", "stop"))


@invariant(3)
def test_not_the_one_that_ends_first():
    out = output("now stop!", "stop!", "to")
    out._cut_at_stop(num_added=9)
    expect((out.text, out.seq.stop_reason, out.stops), ("now ", "stop!", ["stop!", "to"]))


@invariant(3)
def test_of_one_that_is_there_twice_the_first_counts():
    out = output("one. two.", ".")
    out._cut_at_stop(num_added=9)
    expect(out.text, "one")


@invariant(4)
def test_it_stays_where_that_is_asked_for():
    out = output("and the END of", "END", include_stop_str_in_output=True)
    out._cut_at_stop(num_added=4)
    expect(out.text, "and the END")


@invariant(4)
def test_it_stays_at_the_very_end_too():
    out = output("and the END", "END", include_stop_str_in_output=True)
    out._cut_at_stop(num_added=1)
    expect(out.text, "and the END")


@invariant(5)
def test_what_ended_before_is_not_found_again():
    out = output("the END.", "END")  # was let through, before min_tokens
    expect(out._cut_at_stop(num_added=1), False)  # the full stop is new


@invariant(5)
def test_what_ended_before_is_not_where_the_text_is_cut():
    out = output("the END is not the END", "END")  # the first was let through
    out._cut_at_stop(num_added=3)
    expect(out.text, "the END is not the ")


@invariant(6)
def test_the_end_is_held_back():
    out = output("and the E", "END")
    expect(out.shown_text(), "and the")


@invariant(6)
def test_all_of_a_text_that_is_shorter_than_that_is_held_back():
    out = output("and", "and so on")
    expect(out.shown_text(), "")


@invariant(6)
def test_so_it_is_if_it_is_only_a_little_shorter():
    out = output("and so", "and so on")  # 6 characters, and 8 are held back
    expect(out.shown_text(), "")


@invariant(6)
def test_what_is_held_back_is_not_lost():
    out = output("and the E", "END")
    expect((out.shown_text(), out.shown_text(), out.text), ("and the", "and the", "and the E"))


@invariant(6)
def test_a_sequence_that_is_swapped_out_will_go_on():
    out = output("and the E", "END")
    out.seq.status = SequenceStatus.SWAPPED
    expect(out.shown_text(), "and the")


@invariant(6)
def test_nothing_is_held_back_without_stop_strings():
    out = output("and the E")
    expect(out.shown_text(), "and the E")


@invariant(6)
def test_all_is_shown_at_the_end():
    out = output("and the E", "END")
    out.seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
    expect(out.shown_text(), "and the E")
