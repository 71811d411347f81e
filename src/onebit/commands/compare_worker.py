"""A process that trains one run of a comparison: `onebit train`, but it does not outlive who started it.

    python -m onebit.commands.compare_worker train --recipe CONFIG --out RUN --resume --quiet

Its standard input is a pipe that closes when the comparison ends, in whatever way: then the run is saved and stops.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from onebit.commands import main


def _stop_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: a thread inside its lock would keep Python from ending
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.exit(main(sys.argv[1:]))
