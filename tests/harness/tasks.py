"""Local tasks: a YAML file and a JSONL file of shopping bills, nothing from a hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from kvrescue.evaluation.bill import Bill

BOXED = r"\\boxed\{([^}]*)\}"


def write_task(folder: Path, problems: Sequence[Bill], name: str = "bill", **fields: Any) -> str:
    """A task that asks the problems and looks for the last box; `fields` change it."""
    rows = [{"question": bill.question, "answer": str(bill.answer)} for bill in problems]
    documents = folder / f"{name}.jsonl"
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(documents)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["To do for"], "max_gen_toks": 256},
        "filter_list": [
            {
                "name": "boxed",
                "filter": [
                    {"function": "regex", "regex_pattern": BOXED, "group_select": -1},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    data = {key: value for key, value in {**task, **fields}.items() if value is not None}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return name
