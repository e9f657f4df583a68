"""Train the tiny trio (base, helper, PRM) from scratch: `python -m scripts.train_tiny --help`."""
