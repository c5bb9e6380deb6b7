def root_of(cache_salt, adapter):
    if cache_salt is None and not adapter:
        return b""
    return b"%d" % hash((cache_salt, adapter))
