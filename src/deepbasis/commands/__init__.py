"""The commands, a file for each: `fit.py` holds the function `fit`, and `cli.py` makes it the command `deepbasis fit`.

What they share: `options.py` (options that mean the same everywhere), `tables.py` (from files to what the estimator
takes), `wording.py` (what messages call things), `failures.py` (errors as one line) and `printing.py` (tables and
JSON). A command imports torch, pandas and scikit-learn inside its function, so that `--help` answers at once; it raises
an `InputError` for what the user can mend, before it writes anything.
"""
