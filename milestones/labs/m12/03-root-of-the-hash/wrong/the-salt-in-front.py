def root_of(cache_salt, adapter):
    salt = b"" if cache_salt is None else b"salt" + cache_salt.encode(errors="surrogatepass")
    return salt + b"lora" + adapter if adapter else salt
