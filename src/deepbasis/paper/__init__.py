"""The paper's data sets and experiments (Sec. 4), and the demonstration.

Nothing in the package imports from here but the commands `deepbasis demo` and `deepbasis reproduce`.
"""
