"""Tests of lm_eval's model: collected only where lm_eval is installed, and never skipped there."""

from __future__ import annotations

import importlib.util
import os

os.environ["HF_DATASETS_OFFLINE"] = "1"

collect_ignore_glob = [] if importlib.util.find_spec("lm_eval") else ["test_*.py"]
