"""The command line.

The import takes a good part of a second. A SIGTERM during the import ends `semel run` with 0, as a later one does:
nothing has started, so there is nothing to drain. The server replaces this handler when it starts.
"""

import os
import signal
import sys
import threading

if (
    sys.argv[1:2] == ["run"]
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
):
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
