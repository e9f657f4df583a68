"""Collected only where kvpress is installed, and never skipped there."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("kvpress") else ["test_*.py"]
