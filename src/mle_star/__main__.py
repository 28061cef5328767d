"""`python -m mle_star` is the command `mle-star`."""

import sys

from mle_star.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
