def cache_group(pool, chain, tables, group, places):
    table, changed = tables[group], False
    for place in places:
        found = _find(pool, chain, tables, group, place)
        if found is None:
            name, parent = _name(chain, group, place), _parent(tables, group, place)
            pool.cache_block(table[place], name, parent, chain.tokens(place), chain.cache_salt)
        elif found != table[place]:
            pool.touch([found])
            pool.free_blocks([table[place]])
            table[place] = found
            changed = True
    return changed
