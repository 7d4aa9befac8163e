"""Training and prediction of many models at once. Only this folder knows members, devices, batches and checkpoints."""
