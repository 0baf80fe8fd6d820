"""TEST DOUBLE of the compile cache: the names that optimum-neuron imports and extends; nothing is ever cached."""


class CacheUrl:
    """Where a cache would be."""

    @staticmethod
    def get_cache_url(cache_dir: str | None = None) -> "CacheUrl":
        return CacheUrl()


class CompileCache:
    """A cache."""


class CompileCacheFs(CompileCache):
    """On disk."""


class CompileCacheS3(CompileCache):
    """In S3."""


def create_compile_cache(url: CacheUrl) -> CompileCache:
    """One that has nothing: encoders are exported without it, decoders ask for it and never look into it here."""
    return CompileCache()
