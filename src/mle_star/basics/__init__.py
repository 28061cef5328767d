"""What every other module speaks of: the enums, the base of all values, and the settings."""
