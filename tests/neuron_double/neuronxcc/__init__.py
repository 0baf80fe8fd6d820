"""TEST DOUBLE of the compiler's Python package: its version alone."""

import sdk_double

__version__ = sdk_double.setting("CC_VERSION") or sdk_double.CC_VERSION
