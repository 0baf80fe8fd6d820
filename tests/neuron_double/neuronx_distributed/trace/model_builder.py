"""TEST DOUBLE: names only."""


class BaseModelInstance:
    """No encoder is one."""


class ModelBuilder:
    """Of decoders."""
