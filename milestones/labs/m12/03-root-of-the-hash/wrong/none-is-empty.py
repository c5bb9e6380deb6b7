def root_of(cache_salt, adapter):
    salt = b"salt" + cache_salt.encode(errors="surrogatepass") if cache_salt else b""
    return b"lora" + adapter + salt if adapter else salt
