"""A training step and a prediction in a handful of kernels, written in Triton, for the networks of the default.

`steps.steps_for` gives a wave its fused step where the kernels cover what it trains. Everything else, and everything on
a CPU, goes the way of plain PyTorch, which is the reference.
"""
