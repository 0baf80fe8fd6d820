"""`python -m pipeline` is `lengthwise`."""

from pipeline.cli import main

main()
