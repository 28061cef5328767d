"""The parts that scripts are made of: real modules, tested on arrays; a script carries their sources.

A part imports numpy and pandas at its top and everything else inside its functions, so that a block of a script can be
exchanged for another without touching the script's head.
"""
