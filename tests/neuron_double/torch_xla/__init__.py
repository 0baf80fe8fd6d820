"""TEST DOUBLE of torch_xla: names only."""

__version__ = "2.8.1+testdouble"
