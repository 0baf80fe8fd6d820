"""Model + length histogram -> verified artifacts, one per static shape. Never imports `pipeline`."""

import os

# Otherwise MKL, which torch multiplies fp32 with, chooses kernels by the address of a buffer on some CPUs: a row's bits
# would depend on its place in the batch. It reads this once, at its first call.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
