"""The command `mle-star`, also as `python -m mle_star`: heeds Ctrl-C before anything that takes time is imported."""

import signal
import sys
import time
from importlib import import_module
from types import FrameType

EXIT_INTERRUPTED = 130
QUICK_SECONDS = 1.0
"""Several Ctrl-C within this time count as one: what the first began is not interrupted."""
_last = -QUICK_SECONDS


def main() -> int:
    """Run the command line and return its exit code."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        code: int = import_module("mle_star.cli.app").main()
    except KeyboardInterrupt:
        sys.stderr.write("mle-star: interrupted\n")
        code = EXIT_INTERRUPTED
    if code == EXIT_INTERRUPTED:  # Python is about to end, and would take another one as its own death
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last
    before, _last = _last, time.monotonic()
    if _last - before >= QUICK_SECONDS:
        raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
