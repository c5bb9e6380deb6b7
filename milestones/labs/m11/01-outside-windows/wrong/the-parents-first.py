def free_outside_windows(pool, groups, seq):
    for group in range(len(groups.windows)):
        table = seq.tables[group]
        place = min(groups.first_block(group, seq.num_computed_tokens), len(table)) - 1
        while place >= 0 and table[place] != NULL_BLOCK:
            pool.free_blocks([table[place]])
            table[place] = NULL_BLOCK
            place -= 1
