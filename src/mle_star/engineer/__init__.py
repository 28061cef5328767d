"""The embedded model: a Messages API on loopback and the brains behind it. Knows nothing of the pipeline."""
