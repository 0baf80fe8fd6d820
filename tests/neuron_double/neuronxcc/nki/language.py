"""TEST DOUBLE."""


def nc(count: int) -> int:
    return count
