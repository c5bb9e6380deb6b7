def free_outside_windows(pool, groups, seq):
    for group in reversed(range(len(groups.windows))):
        table, gone = seq.tables[group], []
        for place in range(min(groups.first_block(group, seq.num_computed_tokens), len(table))):
            if table[place] == NULL_BLOCK:
                break
            gone.append(place)
        for place in reversed(gone):
            pool.free_blocks([table[place]])
            table[place] = NULL_BLOCK
