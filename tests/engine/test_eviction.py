"""Laws 4 to 6 and 10 on a real model: the engine against the naive list-of-tensors reference."""

from __future__ import annotations

import asyncio

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.engine.sequence import ParkedSequence
from kvrescue.errors import AuditError
from kvrescue.evictors import H2O, RKV, RandomEviction, SnapKV, StreamingLLM
from kvrescue.evictors.base import Evictor
from kvrescue.policies.base import Sampling
from kvrescue.types import StopReason
from tests.engine.models import EOS, VOCAB, engine_for, random_model
from tests.engine.naive import NaiveCache, NaiveModel

EVICTORS: list[Evictor] = [
    RKV(budget=6, window=3, observation=4, kernel_size=3),
    RKV(budget=4, window=5, observation=20, interval=3),
    RKV(budget=9, window=4, observation=3, kernel_size=3),  # tracked, one entry leaves at a time
    RKV(budget=16, window=8, observation=4, interval=3, kernel_size=3),  # tracked, several
    RKV(budget=9, window=4, observation=3, similarity_threshold=None),
    RandomEviction(budget=9, window=4),
    SnapKV(budget=5, window=2, observation=2, kernel_size=3, protect_prompt=True),
    StreamingLLM(budget=4, window=4),
]
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_step_tokens=12, separator="\n\n")
STOP = {1, EOS}

tokens = st.integers(3, VOCAB - 2)
prompt_lists = st.lists(st.lists(tokens, min_size=1, max_size=30), min_size=1, max_size=3)


def check_cache(engine, sequence: ParkedSequence, naive: NaiveCache) -> None:
    """The parked row holds exactly the naive cache: entries, order, positions."""
    store, row = engine.parked.store, sequence.row
    length = int(store.length[row])
    assert length == naive.length()
    assert int(store.logical[row]) == naive.logical
    for layer in range(len(naive.keys)):
        for head in range(len(naive.keys[0])):
            if store.shape.evicts:
                got = store.in_order("positions", row)[layer, head].tolist()
                assert got == naive.positions[layer][head]
            torch.testing.assert_close(
                store.in_order("keys", row)[layer, head],
                torch.stack(naive.keys[layer][head]),
                rtol=1e-4,
                atol=1e-4,
            )


@pytest.mark.parametrize("evictor", [None, *EVICTORS], ids=lambda e: e.kind if e else "full")
@given(prompts=prompt_lists, script=st.lists(st.sampled_from(["own", "foreign"]), max_size=4))
@settings(max_examples=8)
def test_trajectory_equals_the_naive_reference(evictor, prompts, script) -> None:
    """Open, then commit own and foreign steps: same tokens, same cache, bound respected."""
    model, twin = random_model("qwen2"), random_model("qwen2")
    engine, naive = engine_for(model, evictor), NaiveModel(twin, evictor)

    async def run(prompt: list[int]) -> None:
        prefix = len(prompt) if evictor is not None and evictor.protect_prompt else 0
        sequence = await engine.open(prompt)
        cache, logits = naive.open(prompt, prefix)
        check_cache(engine, sequence, cache)
        for action in script:
            if action == "own":
                drafts = await engine.propose(sequence, GREEDY, (), [0, 1], 12, StopReason.LENGTH)
                step, logits = naive.greedy(cache, logits, 12, STOP, prefix)
                assert [d.token_ids for d in drafts] == [step, step]
                engine.adopt(sequence, 1)
                await engine.extend(sequence, step[-1:])
                logits = naive.feed(cache, step[-1:], prefix)
            else:
                foreign = [5, 9, 7, 11, 30, 1]
                await engine.extend(sequence, foreign)
                logits = naive.feed(cache, foreign, prefix)
            check_cache(engine, sequence, cache)
            assert sequence.logits is not None
            torch.testing.assert_close(sequence.logits, logits, rtol=1e-3, atol=1e-3)
            stats = engine.stats(sequence)
            if evictor is not None:
                assert stats.physical_length <= evictor.bound + prefix + evictor.interval - 1
                assert stats.peak_physical <= evictor.bound + prefix + evictor.interval - 1
                assert stats.logical_length == stats.physical_length + stats.dropped
        engine.close(sequence)

    async def all_prompts() -> None:
        await asyncio.gather(*(run(p) for p in prompts))

    asyncio.run(all_prompts())
    assert sum(engine.in_use.values()) == 0


async def test_h2o_accumulates_the_attention_that_entries_receive() -> None:
    """The mass of an entry equals the attention the naive model gave it since it was cached."""
    evictor = H2O(budget=100, window=3)
    engine = engine_for(random_model("llama"), evictor)
    prompt = [4, 8, 15, 16, 23, 42]
    sequence = await engine.open(prompt)
    mass = engine.parked.store.entries["mass"]
    # Every query spreads mass 1 over the entries it sees, in every layer and head.
    total = mass[sequence.row, :, :, : len(prompt)].sum(dim=-1)
    torch.testing.assert_close(total, torch.full_like(total, len(prompt)))
    await engine.extend(sequence, [7, 9])
    total = mass[sequence.row, :, :, : len(prompt) + 2].sum(dim=-1)
    torch.testing.assert_close(total, torch.full_like(total, len(prompt) + 2.0))
    engine.close(sequence)


async def test_h2o_evicts_while_decoding() -> None:
    evictor = H2O(budget=6, window=3)
    engine = engine_for(random_model("llama"), evictor)
    sequence = await engine.open(list(range(3, 33)))
    drafts = await engine.propose(
        sequence, GREEDY.model_copy(update={"separator": "\x00"}), (), [1, 2], 12, StopReason.LENGTH
    )
    assert len(drafts) == 2
    assert engine.stats(sequence).physical_length == 9
    engine.close(sequence)


async def test_two_sequences_in_a_row_both_evict() -> None:
    """Report 5: state must be per sequence, not per process."""
    engine = engine_for(random_model(), RKV(budget=4, window=2, observation=2))
    for _ in range(2):
        sequence = await engine.open(list(range(3, 40)))
        assert engine.stats(sequence).evictions == 1
        assert engine.stats(sequence).dropped == 37 - 6
        engine.close(sequence)


async def test_an_evictor_that_never_fired_is_an_error(monkeypatch) -> None:
    """Law 10: silent full-KV must not pass as eviction."""
    engine = engine_for(random_model(), RKV(budget=4, window=2, observation=2))
    monkeypatch.setattr("kvrescue.engine.eviction.Eviction.fire", lambda self, store, n: [0] * n)
    sequence = await engine.open(list(range(3, 40)))
    with pytest.raises(AuditError, match="never fired"):
        engine.close(sequence)
    assert sum(engine.in_use.values()) == 0
