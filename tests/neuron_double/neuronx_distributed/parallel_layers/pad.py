"""TEST DOUBLE."""


def get_number_of_extra_heads(heads: int, ranks: int) -> int:
    return -heads % ranks
