"""What the norms of networks have in common, also those in kernels."""

NORM_EPSILON = 1e-5
"""Added to the variance of what a norm divides."""
