"""TEST DOUBLE: hardware that the sampler looks up."""

import enum


class hardware(enum.Enum):  # noqa: N801 - the SDK's name
    TRN1 = "trn1"
    TRN2 = "trn2"
