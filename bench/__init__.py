"""Benchmarks. `python -m bench.quick` compares Lengthwise with what one would otherwise write."""
