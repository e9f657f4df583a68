"""Seeds: one number per candidate, a function of what the candidate is and of nothing else."""

from __future__ import annotations

import hashlib
import json

__all__ = ["candidate_seed"]


def candidate_seed(run_seed: int, problem_id: str, step: int, proposer: str, index: int) -> int:
    """The 63-bit seed of one candidate.

    Neither batching order nor the other proposers have a say in it, so adding a helper to a run
    leaves what the base samples from a given context unchanged.

    Args:
        run_seed: the seed of the run.
        problem_id: `Question.id`.
        step: number of the draw within the trajectory. A round that commits nothing counts, too:
            drawing again from the same context must not draw the same candidates.
        proposer: name of the proposer.
        index: position among the proposer's candidates of this draw.
    """
    # JSON keeps the fields apart whatever characters they hold, and escapes everything to ASCII.
    key = json.dumps([run_seed, problem_id, step, proposer, index], separators=(",", ":"))
    digest = hashlib.blake2b(key.encode("ascii"), digest_size=8, person=b"kvrescue")
    return int.from_bytes(digest.digest(), "big") >> 1
