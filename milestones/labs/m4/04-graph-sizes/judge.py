from folovllm.worker.cuda_graph import MAX_GRAPH_SIZE, capture_sizes, padded_size
from lab_judge import expect, invariant


@invariant(1)
def test_a_batch_is_padded_to_the_next_size():
    expect(padded_size(3, [1, 2, 4, 8]), 4)
    expect(padded_size(5, [1, 2, 4, 8]), 8)


@invariant(1)
def test_a_batch_that_has_its_own_size_is_not_padded():
    sizes = [1, 2, 4, 8]
    expect([padded_size(num_seqs, sizes) for num_seqs in (1, 2, 4)], [1, 2, 4])
    expect(padded_size(8, sizes), 8)


@invariant(2)
def test_a_batch_that_is_too_large_has_none():
    expect(padded_size(9, [1, 2, 4, 8]), None)


@invariant(2)
def test_the_sizes_are_only_read():
    sizes = [1, 2, 4, 8]
    found = [padded_size(num_seqs, sizes) for num_seqs in (9, 5, 1)]
    expect((found, sizes), ([None, 8, 1], [1, 2, 4, 8]))


@invariant(3)
def test_small_sizes_lie_close_together():
    expect(capture_sizes(256)[:7], [1, 2, 4, 8, 16, 24, 32])


@invariant(3)
def test_large_ones_further_apart():
    sizes = capture_sizes(512)
    expect(sizes[sizes.index(240) : sizes.index(304) + 1], [240, 248, 256, 272, 288, 304])
    expect(len(sizes), 3 + 256 // 8 + 256 // 16)


@invariant(4)
def test_the_largest_batch_has_a_graph():
    expect(capture_sizes(20), [1, 2, 4, 8, 16, 20])
    expect(capture_sizes(3), [1, 2, 3])


@invariant(4)
def test_it_is_recorded_once():
    expect(capture_sizes(16), [1, 2, 4, 8, 16])
    expect(capture_sizes(1), [1])


@invariant(4)
def test_each_engine_has_sizes_of_its_own():
    small, large = capture_sizes(2), capture_sizes(10)
    expect([small, large], [[1, 2], [1, 2, 4, 8, 10]])


@invariant(4)
def test_there_is_an_end_to_it():
    expect((capture_sizes(10_000)[-1], MAX_GRAPH_SIZE), (512, 512))


@invariant(5)
def test_every_batch_up_to_the_largest_finds_a_size():
    for largest in (1, 7, 8, 100, 300):
        sizes = capture_sizes(largest)
        by_hand = [min(size for size in sizes if size >= num_seqs) for num_seqs in range(1, largest + 1)]
        expect([padded_size(num_seqs, sizes) for num_seqs in range(1, largest + 1)], by_hand)
