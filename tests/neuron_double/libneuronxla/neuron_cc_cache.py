"""TEST DOUBLE of the compile cache: the names that optimum-neuron imports and extends; nothing is ever cached."""


class CacheUrl:
    """Where a cache would be."""


class CompileCache:
    """A cache."""


class CompileCacheFs(CompileCache):
    """On disk."""


class CompileCacheS3(CompileCache):
    """In S3."""


def create_compile_cache(url: CacheUrl) -> CompileCache:
    """Lengthwise exports with disable_neuron_cache=True."""
    raise NotImplementedError("[neuron test double] the compile cache")
