"""The experiments of the paper (Sec. 4), one file for each, and the demonstration."""
