"""TEST DOUBLE of torch_xla: names only."""
