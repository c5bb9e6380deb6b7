from folovllm.core.request_queue import RequestQueue
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant, raises


def request(name):
    return Request(name, None, [1], SamplingParams())


def line_of(keys):
    """A queue with requests by the name of their keys, which arrive in this order."""
    queue, requests = RequestQueue(), {}
    for name, key in keys.items():
        requests[name] = request(name)
        queue.add(requests[name], key)
    return queue, requests


def served(queue):
    """All that are in line, one pop after the other."""
    return [queue.pop().request_id for _ in range(len(queue))]


@invariant(1)
def test_peek_leaves_the_first_in_line():
    queue, _ = line_of({"a": (0, 0), "b": (0, 1)})
    expect([queue.peek().request_id, queue.peek().request_id, len(queue)], ["a", "a", 2])


@invariant(1)
def test_who_comes_later_may_be_first():
    queue, _ = line_of({"a": (5, 0)})
    before = queue.peek().request_id
    queue.add(request("b"), (0, 1))
    expect([before, queue.peek().request_id], ["a", "b"])


@invariant(1)
def test_first_come_first_served():
    queue, _ = line_of({"a": (0, 0), "b": (0, 1), "c": (0, 2)})
    expect(served(queue), ["a", "b", "c"])


@invariant(1)
def test_the_lowest_priority_number_first():
    queue, _ = line_of({"a": (1, 0), "b": (0, 1), "c": (1, 2), "d": (0, 3)})
    expect(served(queue), ["b", "d", "a", "c"])


@invariant(2)
def test_who_left_from_the_front_is_not_served():
    queue, requests = line_of({"a": (0, 0), "b": (0, 1), "c": (0, 2)})
    queue.remove(requests["a"])
    expect(queue.peek().request_id, "b")


@invariant(2)
def test_several_may_have_left_from_the_front():
    queue, requests = line_of({"a": (0, 0), "b": (0, 1), "c": (0, 2), "d": (0, 3)})
    for name in "bca":
        queue.remove(requests[name])
    expect(queue.peek().request_id, "d")


@invariant(2)
def test_who_leaves_from_the_middle_does_not_disturb_the_others():
    priorities = {"a": 0, "b": 5, "c": 1, "d": 9, "e": 6, "f": 2, "g": 3, "h": 9, "i": 9}
    queue, requests = line_of({name: (priority, at) for at, (name, priority) in enumerate(priorities.items())})
    for name in "ab":
        queue.remove(requests[name])
    expect(served(queue), ["c", "f", "g", "e", "d", "h", "i"])


@invariant(3)
def test_a_name_that_comes_back_has_a_new_place():
    queue, requests = line_of({"a": (0, 0), "b": (0, 1)})
    queue.remove(requests["a"])
    queue.add(request("a"), (0, 2))
    expect(served(queue), ["b", "a"])


@invariant(3)
def test_a_request_that_comes_back_has_its_new_place_only():
    queue, requests = line_of({"a": (0, 0), "b": (0, 1)})
    queue.remove(requests["a"])
    queue.add(requests["a"], (0, 2))
    expect(served(queue), ["b", "a"])


@invariant(4)
def test_leaving_twice_is_no_error():
    queue, requests = line_of({"a": (0, 0), "b": (0, 1)})
    queue.remove(requests["a"])
    queue.remove(requests["a"])
    expect((len(queue), served(queue)), (1, ["b"]))


@invariant(4)
def test_another_request_of_that_name_stays_in_line():
    queue, _ = line_of({"a": (0, 0)})
    queue.remove(request("a"))
    expect((len(queue), served(queue)), (1, ["a"]))


@invariant(5)
def test_none_is_next_when_all_have_left():
    queue, requests = line_of({"a": (0, 0)})
    queue.remove(requests["a"])
    with raises(IndexError):
        queue.peek()


@invariant(6)
def test_dead_entries_are_swept_out():
    queue, requests = line_of({str(at): (0, at) for at in range(100)})
    for at in range(1, 100):
        queue.remove(requests[str(at)])
    dead = len(queue._heap) - len(queue)
    expect(dead <= 17, True)
    expect(served(queue), ["0"])


@invariant(6)
def test_what_is_left_behind_a_sweep_is_a_heap():
    keys = {str(at): (0, at * 7 % 101) for at in range(100)}
    queue, requests = line_of(keys)
    for at in range(29, 100):
        queue.remove(requests[str(at)])
    expect(served(queue), sorted((str(at) for at in range(29)), key=keys.get))


@invariant(6)
def test_a_sweep_comes_with_more_than_twice_the_living_plus_16():
    sizes = {}
    for num_entries in (19, 20):
        queue, requests = line_of({str(at): (0, at) for at in range(num_entries)})
        for left in range(num_entries - 1, 0, -1):
            queue.remove(requests[str(left)])
            sizes[num_entries, left] = len(queue._heap)
    expect([sizes[19, 2], sizes[19, 1]], [19, 1])  # 19 entries: not more than 2 * 2 + 16, but more than 2 * 1 + 16
    expect([sizes[20, 2], sizes[20, 1]], [20, 1])  # 20 are exactly 2 * 2 + 16
