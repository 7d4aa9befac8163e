"""File formats: a file for each. `deepbasis.registry.FORMATS` knows them by the endings of names."""
