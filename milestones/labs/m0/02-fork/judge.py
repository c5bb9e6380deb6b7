from folovllm.outputs import Logprob
from folovllm.request import Sequence, SequenceData, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant


def running():
    """A sequence in the middle of its work: prompt [1, 2, 3], output [4]."""
    return Sequence(
        seq_id="7-0",
        request_id="7",
        data=SequenceData([1, 2, 3], [4]),
        sampling_params=SamplingParams(),
        status=SequenceStatus.RUNNING,
        block_ids=[5, 9],
        num_computed_tokens=3,
        output_logprobs=[{4: Logprob(-0.5)}],
        cumulative_logprob=-0.5,
        stop_reason="END",
    )


@invariant(1)
def test_the_child_has_the_new_id_and_the_same_tokens():
    child = running().fork("7-1")
    expect((child.seq_id, child.request_id), ("7-1", "7"))
    expect((child.data.prompt_token_ids, child.data.output_token_ids), ([1, 2, 3], [4]))


@invariant(1)
def test_the_child_has_come_as_far_as_its_parent():
    child = running().fork("7-1")
    expect((child.status.name, child.num_computed_tokens, child.block_ids), ("RUNNING", 3, [5, 9]))
    expect((len(child.output_logprobs), child.cumulative_logprob, child.stop_reason), (1, -0.5, "END"))


@invariant(1)
def test_a_parent_that_has_not_begun():
    parent = Sequence("7-0", "chat", SequenceData([1, 2, 3]), SamplingParams(), cumulative_logprob=-0.5)
    child = parent.fork("7-1")
    expect((parent.seq_id, child.request_id, child.status.name), ("7-0", "chat", "WAITING"))
    expect((child.num_computed_tokens, child.cumulative_logprob), (0, -0.5))


@invariant(1)
def test_the_child_is_as_long_as_its_parent():
    child = running().fork("7-1")
    expect((child.get_prompt_len(), child.get_len()), (3, 4))


@invariant(2)
def test_each_adds_tokens_for_itself():
    parent = running()
    child = parent.fork("7-1")
    parent.add_token_id(5)
    child.add_token_id(6)
    expect(parent.get_token_ids(), [1, 2, 3, 4, 5])
    expect(child.get_token_ids(), [1, 2, 3, 4, 6])


@invariant(2)
def test_the_list_of_the_prompt_is_the_child_s_own_too():
    parent = running()
    child = parent.fork("7-1")
    parent.data.prompt_token_ids[0] = 9
    expect(child.get_token_ids(), [1, 2, 3, 4])


@invariant(2)
def test_an_output_that_is_empty_is_not_shared_either():
    parent = Sequence("7-0", "7", SequenceData([1, 2, 3]), SamplingParams())
    child = parent.fork("7-1")
    parent.add_token_id(4)
    expect(child.get_token_ids(), [1, 2, 3])


@invariant(3)
def test_each_has_a_block_table_of_its_own():
    parent = running()
    child = parent.fork("7-1")
    parent.block_ids.append(11)
    both = (parent.block_ids, child.block_ids)
    expect(both, ([5, 9, 11], [5, 9]))


@invariant(3)
def test_so_it_is_for_an_empty_table():
    parent = Sequence("7-0", "7", SequenceData([1, 2, 3]), SamplingParams())
    child = parent.fork("7-1")
    parent.block_ids.append(5)
    expect(child.block_ids, [])


@invariant(3)
def test_so_it_is_for_a_second_child_and_for_a_grandchild():
    parent = running()
    others = [parent.fork("7-2"), parent.fork("7-3").fork("7-4")]
    parent.block_ids.append(11)
    expect([other.block_ids for other in others], [[5, 9], [5, 9]])


@invariant(4)
def test_each_has_a_list_of_logprobs():
    parent = running()
    child = parent.fork("7-1")
    parent.output_logprobs.append({5: Logprob(-1.0)})
    expect((len(parent.output_logprobs), len(child.output_logprobs)), (2, 1))


@invariant(4)
def test_a_list_without_logprobs_is_not_shared_either():
    parent = Sequence("7-0", "7", SequenceData([1, 2, 3]), SamplingParams())
    child = parent.fork("7-1")
    parent.output_logprobs.append({5: Logprob(-1.0)})
    expect(len(child.output_logprobs), 0)


@invariant(4)
def test_the_entries_are_the_same():
    parent = running()
    child = parent.fork("7-1")
    same = child.output_logprobs[0] is parent.output_logprobs[0]
    expect(same, True)


@invariant(5)
def test_the_parameters_are_the_same_object():
    parent = running()
    same = parent.fork("7-1").sampling_params is parent.sampling_params
    expect(same, True)
