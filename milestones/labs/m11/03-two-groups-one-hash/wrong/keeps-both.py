def cache_group(pool, chain, tables, group, places):
    table, changed = tables[group], False
    for place in places:
        if table[place] == NULL_BLOCK:
            continue
        found = _find(pool, chain, tables, group, place)
        if found is None:
            name, parent = _name(chain, group, place), _parent(tables, group, place)
            pool.cache_block(table[place], name, parent, chain.tokens(place), chain.cache_salt)
    return changed
