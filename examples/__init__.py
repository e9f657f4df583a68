"""Plugins to read and to copy; each file is whole, and loads by its path, too."""
