"""What a running phase can reach: the run's context, folder, journal, ledger and forecast.

Larger than planned: requests and what prompts say of the run, results of phases and log lines are made here from the
ledger and from events, instead of in each phase.
"""
