"""The part of `kvrescue doctor` that imports vLLM: a process of its own, which may break or hang.

`python -m kvrescue.cli.vllm_probe` writes one JSON object a line to standard output: what it starts
(`stage`), what came of it (`imported`, `ours` and `theirs`), or why it ended (`error`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

from kvrescue.errors import KVRescueError

__all__ = ["main"]

_TOKENS: Final = 24


def main() -> None:
    """Import vLLM, look at the methods that kvrescue extends, compare an engine with torch's."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is written does not spoil the answer

    def tell(**found: Any) -> None:
        out.write(json.dumps(found) + "\n")
        out.flush()

    try:
        tell(stage="import")
        from kvrescue.policies.vllm.quiet import quiet_vllm, usable_cache
        from kvrescue.policies.vllm.support import installed_version, require_vllm

        quiet_vllm()
        usable_cache()
        require_vllm()
        tell(imported=installed_version())
        tell(stage="engine")
        tell(**asyncio.run(_compare()))
    except KVRescueError as error:
        tell(error=str(error))
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")
    sys.stdout.flush()


async def _compare() -> dict[str, Any]:
    """Greedy tokens of the evicted base on both engines, and how often each of them evicted."""
    from kvrescue.evaluation.bill import bill_at
    from kvrescue.evictors import RKV
    from kvrescue.policies.base import Policy
    from kvrescue.policies.torch import TorchPolicy
    from kvrescue.policies.vllm.policy import VLLMPolicy
    from kvrescue.questions import as_question
    from kvrescue.sampling import Sampling

    question = as_question(bill_at("test", 0, 0).question)
    greedy = Sampling(temperature=0.0, max_step_tokens=_TOKENS, separator="\0")
    evictor = RKV(budget=16, window=12, observation=8, interval=1)

    async def run(policy: Policy) -> dict[str, Any]:
        view = await policy.open(question, "base")
        found = await view.propose(1, greedy, (), [0], _TOKENS)
        await view.commit(found[0])
        evictions = view.stats.evictions
        await view.close()
        return {"tokens": list(found[0].token_ids), "evictions": evictions}

    theirs = await run(TorchPolicy("tiny/base", evictor=evictor, device="cpu", dtype="float32"))
    policy = VLLMPolicy("tiny/base", evictor=evictor, dtype="float32", kv_cache_bytes=16 << 20)
    try:
        return {"ours": await run(policy), "theirs": theirs}
    finally:
        await policy.aclose()


if __name__ == "__main__":
    main()
