"""`python -m mle_star` is the command `mle-star`."""

from mle_star.cli.app import main

main()
