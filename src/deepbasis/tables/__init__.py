"""A user's data: mixed-type tables to float arrays and back, everything written down without pickle."""
