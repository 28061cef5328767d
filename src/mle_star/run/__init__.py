"""What a running phase can reach: the run's context, folder, journal, ledger and forecast."""
