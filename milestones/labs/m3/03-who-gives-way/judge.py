from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.preemption import Preempter, choose_victims
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED
STOPPED = SequenceStatus.FINISHED_STOPPED


def request(name, *statuses, beams=False):
    """A request with a sequence of each status, called name-0, name-1, …"""
    n = len(statuses)
    settings = {"best_of": n, "use_beam_search": True} if beams else {"n": n}
    made = Request(name, None, [1, 2, 3], SamplingParams(**settings))
    for seq, status in zip(made.get_seqs(), statuses, strict=True):
        seq.status = status
    return made


def names(seqs):
    return [seq.seq_id for seq in seqs]


@invariant(1)
def test_the_newest_gives_way_with_all_that_runs():
    old, new = request("old", RUNNING), request("new", RUNNING, RUNNING)
    victims = choose_victims(newest=new, needy=old)
    expect(names(victims), ["new-0", "new-1"])


@invariant(1)
def test_who_has_no_blocks_gives_none():
    old, new = request("old", RUNNING), request("new", STOPPED, RUNNING, WAITING)
    expect(names(choose_victims(newest=new, needy=old)), ["new-1"])


@invariant(1)
def test_to_choose_changes_nothing():
    old, new = request("old", RUNNING), request("new", RUNNING, WAITING, RUNNING)
    chosen = [names(choose_victims(newest=new, needy=old)) for _ in range(2)]
    expect(chosen, [["new-0", "new-2"], ["new-0", "new-2"]])
    expect([seq.status for seq in new.get_seqs()], [RUNNING, WAITING, RUNNING])


@invariant(1)
def test_each_choice_is_a_list_of_its_own():
    old, new = request("old", RUNNING), request("new", RUNNING, RUNNING)
    first, second = choose_victims(newest=new, needy=old), choose_victims(newest=old, needy=new)
    expect([names(first), names(second)], [["new-0", "new-1"], ["old-0"]])


@invariant(2)
def test_a_needy_newest_keeps_all_but_its_last():
    new = request("new", RUNNING, RUNNING, RUNNING)
    expect(names(choose_victims(newest=new, needy=new)), ["new-2"])


@invariant(2)
def test_however_many_they_are():
    one, four = request("one", RUNNING), request("four", *[RUNNING] * 4)
    expect([names(choose_victims(r, r)) for r in (one, four, four)], [["one-0"], ["four-3"], ["four-3"]])


@invariant(2)
def test_so_it_is_where_the_best_of_several_is_asked_for():
    new = Request("new", None, [1, 2, 3], SamplingParams(n=1, best_of=2))
    for seq in new.get_seqs():
        seq.status = RUNNING
    expect(names(choose_victims(newest=new, needy=new)), ["new-1"])


@invariant(3)
def test_beams_give_way_together():
    new = request("new", RUNNING, RUNNING, beams=True)
    expect(names(choose_victims(newest=new, needy=new)), ["new-0", "new-1"])


@invariant(4)
def test_the_mode_decides():
    one, two = request("one", RUNNING), request("two", RUNNING, RUNNING)
    kv = KVCacheManager(4, 4, 4)
    expect([Preempter(kv, "swap")._swaps(r) for r in (one, two)], [True, True])
    expect([Preempter(kv, "recompute")._swaps(r) for r in (one, two)], [False, False])


@invariant(4)
def test_it_decides_again_each_time():
    two, swap = request("two", RUNNING, RUNNING), Preempter(KVCacheManager(4, 4, 4), "swap")
    swap.num_swapped = 2
    expect([swap._swaps(two), swap._swaps(two), swap.num_swapped], [True, True, 2])


@invariant(5)
def test_auto_swaps_what_has_several():
    one, two = request("one", RUNNING), request("two", RUNNING, WAITING)
    auto = Preempter(KVCacheManager(4, 4, 4), "auto")
    expect([auto._swaps(one), auto._swaps(two)], [False, True])


@invariant(5)
def test_auto_counts_who_has_work_left():
    auto = Preempter(KVCacheManager(4, 4, 4), "auto")
    last_of_two = request("r", STOPPED, RUNNING)
    expect(auto._swaps(last_of_two), False)


@invariant(5)
def test_who_is_swapped_out_has_work_left():
    auto = Preempter(KVCacheManager(4, 4, 4), "auto")
    expect(auto._swaps(request("r", SWAPPED, RUNNING)), True)


@invariant(5)
def test_auto_counts_anew_each_time():
    auto, two = Preempter(KVCacheManager(4, 4, 4), "auto"), request("two", RUNNING, RUNNING)
    before = auto._swaps(two)
    two.get_seqs()[0].status = STOPPED
    expect([before, auto._swaps(two)], [True, False])
