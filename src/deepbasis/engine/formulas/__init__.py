"""The gradient of a step on a CPU by formulas of our own: that of autograd, in about two thirds of the time.

Nothing with a row for each of the batch is allocated at a step: buffers are used again, half as many as autograd keeps.
What depends on parameters alone is computed for these, once:

- A norm does not heed the mean of a row of its input, so every layer that writes to the residual stream is centred,
  W <- W - mean(W), and a norm divides by the root of the mean square. Its own weights go into the layer behind it.
- L^T phi and <m, phi> are one product, a [diag(s) L, s m], where phi = s a, a the expansion's SiLU.

They cover what the default trains: a ResNet with a SiLU expansion, without the trace term (alpha = 0), for a Gaussian
target. `gp/` has the same formulas for one model, and is the reference. Letters are those of `gp/`; dW is the gradient
in W, and Wt is the transpose of W.
"""
