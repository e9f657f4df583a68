"""Parity with what the reference implementations returned (see goldens/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvrescue.evictors import RKV, Evictor, KVSlice, SnapKV, StreamingLLM

torch.set_num_threads(1)

FOLDER = Path(__file__).parent / "goldens"
KINDS: dict[str, type[Evictor]] = {e.kind: e for e in (RKV, SnapKV, StreamingLLM)}


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    file = np.load(path)
    return file, json.loads(bytes(file["facts"]))


def build(options: dict[str, Any]) -> Evictor:
    rest = dict(options)
    return KINDS[rest.pop("kind")](**rest)


def cases() -> list[Any]:
    return [
        pytest.param(path, number, id=f"{path.stem}-{number}-{run['reference']}")
        for path in sorted(FOLDER.glob("*.npz"))
        for number, run in enumerate(load(path)[1].get("runs", []))
    ]


def test_every_reference_is_covered() -> None:
    """A lost fixture file must not pass as an empty parametrisation."""
    references = {
        run["reference"] for path in FOLDER.glob("*.npz") for run in load(path)[1].get("runs", [])
    }
    assert references == {
        "rkv",
        "rkv_repo_snapkv",
        "rkv_repo_streamingllm",
        "snapkv_official",
        "kvpress_snapkv",
    }
    assert len(cases()) >= 30


@pytest.mark.parametrize(("path", "number"), cases())
def test_kept_set_and_scores_equal_the_reference(path: Path, number: int) -> None:
    file, facts = load(path)
    run = facts["runs"][number]
    evictor = build(run["evictor"])
    keys, queries = torch.tensor(file["keys"]), torch.tensor(file["queries"])
    if run["per_query_head"]:
        keys = keys.repeat_interleave(len(queries) // len(keys), 0)
    kv = KVSlice(keys=keys[None], queries=queries[None])
    kept = evictor.select(kv)[0]
    expected = torch.tensor(file[f"r{number}_kept"]).long()
    if run["robust"]:
        assert torch.equal(kept, expected)
    else:
        mask = torch.zeros(keys.shape[:2], dtype=torch.bool).scatter_(1, kept, True)
        must = torch.tensor(file[f"r{number}_must_keep"])
        may = torch.tensor(file[f"r{number}_may_keep"])
        assert kept.shape == expected.shape
        assert bool((mask >= must).all())
        assert bool((mask <= (must | may)).all())
    if f"r{number}_scores" in file:
        expected_scores = torch.tensor(file[f"r{number}_scores"])
        scores = evictor.score(kv)[0, :, : expected_scores.shape[1]]
        if run["summed_over_queries"]:
            scores = scores * queries.shape[1]
        torch.testing.assert_close(scores, expected_scores, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("multi_*.npz")), ids=lambda path: path.stem)
def test_repeated_firing_in_the_reference_order(path: Path) -> None:
    """The reference leaves the cache in score order; fed the same order, we keep the same."""
    file, facts = load(path)
    evictor = build(facts["evictor"])
    keys, queries = torch.tensor(file["keys"]), torch.tensor(file["queries"])
    heads, _, dim = keys.shape
    cached = torch.empty((heads, 0), dtype=torch.int64)
    seen = 0
    for length, expected in zip(facts["fires_at_len"], file["kept_order"], strict=True):
        cached = torch.cat((cached, torch.arange(seen, length).expand(heads, -1)), 1)
        kv = KVSlice(
            keys=keys.gather(1, cached.unsqueeze(2).expand(-1, -1, dim))[None],
            queries=queries[None, :, max(0, length - evictor.window) : length],
        )
        kept = cached.gather(1, evictor.select(kv)[0])
        cached, seen = torch.tensor(expected).long(), length
        assert torch.equal(kept.sort(1).values, cached.sort(1).values)
