def _name(chain, group, place):
    return chain.block_hash(place)
