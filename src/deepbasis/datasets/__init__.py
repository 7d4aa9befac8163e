"""The data sets of the paper's experiments (Sec. 4): made here, or read from where they are."""
