"""TEST DOUBLE of libneuronxla: names only."""

__version__ = "2.2.12677.0+testdouble"
