"""Model + length histogram -> verified artifacts, one per static shape. Never imports `pipeline`."""
