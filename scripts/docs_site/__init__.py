"""The documentation site: pages that are written from the code, and what `make docs` checks."""
