def free_outside_windows(pool, groups, seq):
    for group in reversed(range(len(groups.windows))):
        table = seq.tables[group]
        gone = min(groups.first_block(group, seq.num_computed_tokens), len(table))
        for block in reversed(table[:gone]):
            pool.free_blocks([block])
        del table[:gone]
