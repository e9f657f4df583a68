"""What only a GPU can show, as one prepared run; see `python -m benchmarks.gpu --help`."""
