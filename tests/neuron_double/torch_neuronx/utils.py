"""TEST DOUBLE."""

import os


def get_platform_target() -> str:
    return os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
