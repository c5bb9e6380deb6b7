def root_of(cache_salt, adapter):
    if cache_salt is None:
        return adapter
    return adapter + cache_salt.encode(errors="surrogatepass") + b"."
