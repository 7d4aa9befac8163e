"""File formats, one module each. `deepbasis.registry.FORMATS` finds them by the ending of a file's name."""
