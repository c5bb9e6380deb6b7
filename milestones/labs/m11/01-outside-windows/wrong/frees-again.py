def free_outside_windows(pool, groups, seq):
    for group in reversed(range(len(groups.windows))):
        table = seq.tables[group]
        for place in reversed(range(min(groups.first_block(group, seq.num_computed_tokens), len(table)))):
            pool.free_blocks([table[place]])
            table[place] = NULL_BLOCK
