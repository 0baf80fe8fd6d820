"""`python -m pipeline` is `lengthwise`."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the imports below run ends without a traceback

from pipeline.cli import main

main()
