"""Plugins to read and to copy: each file is whole, and also loads by its path (docs/examples.md)."""
