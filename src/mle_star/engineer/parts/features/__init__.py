"""What a row is turned into: reading, encodings, and steps that add columns."""
