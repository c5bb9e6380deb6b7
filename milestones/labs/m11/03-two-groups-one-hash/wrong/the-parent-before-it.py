def _parent(tables, group, place):
    return tables[group][place - 1] if group and place else NULL_BLOCK
