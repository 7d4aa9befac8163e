"""Training and prediction of many models at once. Members, devices, batches and checkpoints are known here alone."""
