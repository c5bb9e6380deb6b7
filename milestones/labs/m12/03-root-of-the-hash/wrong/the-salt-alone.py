def root_of(cache_salt, adapter):
    return b"" if cache_salt is None else b"salt" + cache_salt.encode(errors="surrogatepass")
