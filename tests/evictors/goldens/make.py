"""Make the fixtures in this folder from the full set of reference outputs (see README.md).

    python tests/evictors/goldens/make.py SOURCE_FOLDER

Translates the references' vocabulary (total budget, class names) into evictor options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

NAMES = (
    "rand_g4_d32_n129",
    "rand_g7_d64_n150",
    "dup_pairs_g4_d64_n100",
    "dup_triples_g4_d64_n120",
    "dup_of_token0_g4_d32_n80",
    "ties_exact_copies_n60",
    "edge_len_vs_budget",
    "edge_fewer_queries_than_window",
    "real_l12_n113_prompt",
    "multi_every1_b24_w8",
)


def options(method: str, hp: dict[str, Any]) -> dict[str, Any] | None:
    """Evictor options for a reference run; None for options that kvrescue does not have."""
    if method == "rkv_repo_streamingllm":
        return {
            "kind": "streaming_llm",
            "budget": hp["budget"] - 8,
            "window": 8,
            "sinks": hp["first_tokens"],
        }
    total = hp.get("budget") or hp.get("max_capacity_prompt") or hp.get("n_kept")
    common = {
        "budget": total - hp["window_size"],
        "window": hp["window_size"],
        "kernel_size": hp["kernel_size"],
    }
    if method == "rkv":
        # "last_percent" is the same maximum as "last"; the "first" modes are not offered.
        if hp["retain_direction"].startswith("first"):
            return None
        return {"kind": "rkv", "lam": hp["mix_lambda"], **common}
    if method == "rkv_repo_snapkv":
        return {"kind": "snapkv", **common}
    pooling = hp.get("pooling", "avgpool")[:3]
    return {
        "kind": "snapkv",
        "pooling": pooling,
        "reduce": "mean",
        "softmax_over": "all",
        **common,
    }


def single(source: Any, meta: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    arrays: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    for number, run in enumerate(meta["runs"]):
        evictor = options(run["method"], run["hp"])
        if evictor is None:
            continue
        target = len(runs)
        for array in ("kept", "scores", "must_keep", "may_keep"):
            if f"r{number}_{array}" in source:
                arrays[f"r{target}_{array}"] = source[f"r{number}_{array}"]
        runs.append(
            {
                "reference": run["method"],
                "evictor": evictor,
                "per_query_head": run["head_axis"] == "q",
                "robust": run["robust"],
                "summed_over_queries": run["method"] == "snapkv_official",
            }
        )
    return arrays, runs


def main(folder: Path) -> None:
    here = Path(__file__).parent
    for name in NAMES:
        source = np.load(folder / f"{name}.npz")
        meta = json.loads(bytes(source["meta_json"]))
        facts: dict[str, Any] = {"note": meta["note"]}
        if meta.get("kind") == "multi_step":
            arrays = {"kept_order": source["kept_order"]}
            facts["fires_at_len"] = meta["fires_at_len"]
            facts["evictor"] = options(meta["method"], meta["hp"])
        else:
            arrays, facts["runs"] = single(source, meta)
        np.savez_compressed(
            here / f"{name}.npz",
            keys=source["keys"],
            queries=source["queries"],
            facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
            **arrays,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
