"""TEST DOUBLE."""


def divide(numerator: int, denominator: int) -> int:
    if numerator % denominator:
        raise ValueError(f"[neuron test double] {numerator} does not divide by {denominator}")
    return numerator // denominator


def get_padding_length(size: int, multiple: int) -> int:
    return -size % multiple
