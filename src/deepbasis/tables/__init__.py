"""A user's data: mixed-type tables to float arrays and back, saved without pickle."""
