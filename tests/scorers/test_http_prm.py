"""HTTPPRM against a server that speaks as vLLM does: scores, traps, failures, loops, secrets."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvrescue.config import RescueConfig, config_hash, load_config, resolved_yaml
from kvrescue.errors import ConfigError, DependencyError, InputError, ModelLoadError, ScorerError
from kvrescue.parts import Parts
from kvrescue.scorers import HTTPPRMSpec
from kvrescue.scorers.http_prm import HTTPPRM, PROBES
from kvrescue.scorers.qwen_prm import QwenPRM
from kvrescue.testing import check_scorer
from tests.engine.checkpoints import save_prm
from tests.scorers.helpers import QUESTION, Trajectory, candidate, pool
from tests.scorers.server import Server, serving

STEPS = ("Let x = 3.\n\n", "Then we add 4:\n\n\n", "So the answer is 7.\n\n")
OTHERS = ("First, 12 apples.\n\n", "é 文字 😀\n\n", "so <extra_0> it is\n\n")
KEY = "s3cret-0123456789"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_prm(tmp_path_factory.mktemp("prm"))


@pytest.fixture(scope="module")
def prm(folder: Path) -> QwenPRM:
    """The same on torch; as long as it is held, its weights and tokenizer are shared."""
    return QwenPRM(str(folder))


@pytest.fixture(scope="module")
def tag(prm: QwenPRM) -> int:
    assert prm.text.tag is not None
    return prm.text.tag


@pytest.fixture
def server(folder: Path, tag: int) -> Iterator[Server]:
    with serving(Server(folder, tag=tag)) as started:
        yield started


def client(server: Server, **options: Any) -> HTTPPRM:
    defaults = {"tokenizer": str(server.folder), "backoff": 0.0, "timeout": 60.0}
    return HTTPPRM(server.url, server.name, **{**defaults, **options})


# -- scores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", ["step_tag", "separator"])
async def test_scores_of_a_whole_trajectory(server: Server, folder: Path, convention: Any) -> None:
    """The numbers of QwenPRM, in the order of the candidates; one request a step."""
    server.pooling = "STEP" if convention == "step_tag" else "ALL"
    ours = client(server, convention=convention)
    theirs = QwenPRM(str(folder), convention=convention)
    t = Trajectory()
    for step in STEPS:
        before = len(server.bodies)
        shown = pool(*OTHERS, step, OTHERS[0])
        expected = await theirs.score(t.context, shown)
        assert await ours.score(t.context, shown) == pytest.approx(expected, abs=1e-5)
        [body] = server.bodies[before:]
        assert len(body["input"]) == len(OTHERS) + 1  # the one that is there twice is sent once
        assert body["model"] == server.name
        t.commit(candidate(step))
    await theirs.release(t.context)
    await ours.aclose()


def test_laws(server: Server) -> None:
    check_scorer(lambda: client(server), examples=4)


async def test_the_server_is_tried_once(server: Server) -> None:
    ours = client(server)
    assert server.requests == ["GET /v1/models", "POST /pooling"]
    await ours.score(Trajectory().context, pool(*STEPS))
    assert server.requests == ["GET /v1/models", "POST /pooling", "POST /pooling"]
    await ours.aclose()


async def test_answers_out_of_order_are_sorted(server: Server, prm: QwenPRM) -> None:
    def reverse(answer: Any) -> Any:
        return {**answer, "data": answer["data"][::-1]}

    server.spoil = reverse
    ours = client(server)
    expected = await prm.score(Trajectory().context, pool(*STEPS))
    assert await ours.score(Trajectory().context, pool(*STEPS)) == pytest.approx(expected, abs=1e-5)
    await ours.aclose()


def test_the_url_may_be_the_one_of_the_api(server: Server) -> None:
    for tail in ("/", "/v1", "/v1/"):
        assert HTTPPRM(server.url + tail, "prm", tokenizer=str(server.folder)).max_context == 512


# -- traps --------------------------------------------------------------------------------------


def test_step_pooling_for_a_separator_is_refused(server: Server) -> None:
    """No tag, no rows, no error: `data` is empty."""
    with pytest.raises(ScorerError) as caught:
        client(server, convention="separator")
    assert "none at all (data: [])" in str(caught.value)
    assert """--runner pooling --pooler-config '{"pooling_type": "ALL"}'""" in str(caught.value)


def test_the_tag_of_another_tokenizer_is_refused(server: Server, tag: int) -> None:
    """vLLM takes 151651 unless it is told otherwise."""
    server.tag = 151651
    with pytest.raises(ScorerError) as caught:
        client(server)
    assert "none at all (data: [])" in str(caught.value)
    wanted = {"pooling_type": "STEP", "step_tag_id": tag}
    assert f"--pooler-config '{json.dumps(wanted)}'" in str(caught.value)


def test_another_token_as_a_tag_is_refused(prm: QwenPRM) -> None:
    """For all tokens: the server is tried with texts that hold none as often as steps."""
    texts = [prm.text.text("What is x?", steps).ids for steps in PROBES]
    counts = {t: [ids.count(t) for ids in texts] for t in range(len(prm.tokenizer))}
    assert [t for t, found in counts.items() if found == [1, 3]] == [prm.text.tag]


def test_all_rows_for_a_tag_are_refused(server: Server) -> None:
    server.pooling = "ALL"
    with pytest.raises(ScorerError, match=r"rows expected: 1, found: \d\d.*\"STEP\""):
        client(server)


def test_an_embedding_model_is_refused(server: Server) -> None:
    task = {"error": {"message": "Unsupported task: 'token_classify'", "code": 400}}
    server.faults = [(400, json.dumps(task))]
    with pytest.raises(ScorerError, match=r"HTTP 400: Unsupported task.*; start the server as"):
        client(server)
    assert server.bodies[0]["task"] == "token_classify"


def test_a_model_that_generates_is_refused(server: Server) -> None:
    server.faults = [(404, '{"detail":"Not Found"}')]
    with pytest.raises(ScorerError, match=r"POST .*/pooling: HTTP 404.*--runner pooling"):
        client(server)


def test_another_name_is_refused(server: Server) -> None:
    server.name = "qwen-prm"
    with pytest.raises(ConfigError, match=r"model = 'qwen-prn' is not served .* 'qwen-prm'\?"):
        HTTPPRM(server.url, "qwen-prn", tokenizer=str(server.folder))


def _data(change: Any) -> Any:
    def spoil(answer: Any) -> Any:
        for item in answer["data"]:
            item["data"] = change(item["data"])
        return answer

    return spoil


BAD: dict[str, tuple[Any, str]] = {
    "no rows": (_data(lambda rows: []), r"rows expected: 1, found: none at all \(data: \[\]\)"),
    "a row too many": (_data(lambda rows: [*rows, rows[0]]), "rows expected: 1, found: 2"),
    "embeddings": (_data(lambda rows: [[0.1] * 896]), "two numbers per row, found 896"),
    "one number": (_data(lambda rows: [[0.1]]), "two numbers per row, found 1"),
    "one vector": (_data(lambda rows: [0.1] * 8), "one row per place, found a list of 8"),
    "base64": (_data(lambda rows: "AAAA"), "one row per place, found 'AAAA'"),
    "null": (_data(lambda rows: None), "one row per place, found None"),
    "NaN": (_data(lambda rows: [[math.nan, 0.5]]), "NaN or infinite"),
    "infinite": (_data(lambda rows: [[0.0, math.inf]]), "NaN or infinite"),
    "nulls": (_data(lambda rows: [[None, None]]), "NaN or infinite"),
    "logits": (_data(lambda rows: [[-3.5, 2.0]]), "not probabilities; do not turn"),
    "huge": (_data(lambda rows: [[0, 10**400]]), "not probabilities"),
    "sum": (_data(lambda rows: [[0.9, 0.9]]), "not probabilities"),
    "no data": (lambda a: {"object": "list"}, "holds no list `data`"),
    "a list": (lambda a: [a], "holds no list `data`"),
    "data of texts": (lambda a: {"data": ["x"]}, "holds no list `data`"),
    "too few": (lambda a: {"data": a["data"][1:]}, r"2 texts were sent.*\[1\]"),
    "too many": (lambda a: {"data": a["data"] * 2}, "2 texts were sent"),
    "doubled": (lambda a: {"data": [a["data"][0]] * 2}, r"2 texts were sent.*\[0, 0\]"),
    "strange index": (lambda a: {"data": [{"index": []}] * 2}, "2 texts were sent"),
    "no JSON": (lambda a: "<html>hello</html>", "no JSON: <html>hello"),
    "nested": (lambda a: "[" * 100_000, "no JSON"),
    "long": (lambda a: "x" * 100_000, r"x\.\.\. \(100000 characters\)$"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_answers_are_told(server: Server, name: str) -> None:
    """When it starts, and later, when there is one text in a request or several."""
    spoil, match = BAD[name]
    good = client(server)
    server.spoil = spoil
    with pytest.raises(ScorerError, match=match) as caught:
        client(server)
    assert server.url in str(caught.value)
    assert len(str(caught.value)) < 700
    with pytest.raises(ScorerError):
        await good.score(Trajectory().context, pool(*STEPS[:2]))
    server.spoil = lambda answer: answer
    [score] = await good.score(Trajectory().context, pool(STEPS[0]))
    assert 0 <= score <= 1
    await good.aclose()


# -- limits -------------------------------------------------------------------------------------


async def test_the_context_is_the_servers(server: Server) -> None:
    server.limit = 120
    ours = client(server)
    t = Trajectory()
    long = "12 apples and 4 x = 3. " * 20
    with pytest.raises(ScorerError, match=r"context of 120 tokens is full .* lower limits"):
        await ours.score(t.context, pool(STEPS[0], long))
    with pytest.raises(InputError, match="of the PRM's context of 120; shorten it"):
        await ours.score(Trajectory("why? " * 200).context, pool("x"))
    t.commit(candidate(long))
    with pytest.raises(ScorerError, match="a committed step needs"):
        await ours.score(t.context, pool("x"))
    assert len(server.bodies) == 1  # nothing of it was sent
    await ours.aclose()


def test_max_context(server: Server) -> None:
    assert client(server, max_context=100).max_context == 100
    with pytest.raises(ConfigError, match=r"max_context = 513 exceeds .*at most 512"):
        client(server, max_context=513)
    server.limit = None
    assert client(server).max_context == 4096
    assert client(server, max_context=5000).max_context == 5000


# -- failures of the server ---------------------------------------------------------------------


@pytest.mark.parametrize("fault", [(503, "loading"), (429, ""), (502, ""), (504, ""), "drop"])
async def test_a_busy_or_broken_server_is_asked_again(server: Server, fault: Any) -> None:
    ours = client(server, retries=3)
    before = len(server.bodies)
    expected = await ours.score(Trajectory().context, pool(*STEPS))
    server.faults = [fault] * 3
    assert await ours.score(Trajectory().context, pool(*STEPS)) == expected
    assert len(server.bodies) - before == 1 + 4
    server.faults = [fault] * 4
    with pytest.raises(ScorerError, match=r"HTTP \d{3}|no answer \(.*attempts: 4\)") as caught:
        await ours.score(Trajectory().context, pool(*STEPS))
    assert f"POST {server.url}/pooling" in str(caught.value)
    assert await ours.score(Trajectory().context, pool(*STEPS)) == expected
    await ours.aclose()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 500])
async def test_a_refusal_is_not_repeated(server: Server, status: int) -> None:
    ours = client(server)
    before = len(server.bodies)
    server.faults = [(status, json.dumps({"error": {"message": "no,\n\n  thanks"}}))] * 2
    with pytest.raises(ScorerError, match=f"HTTP {status}: no, thanks"):
        await ours.score(Trajectory().context, pool(*STEPS))
    assert len(server.bodies) == before + 1
    await ours.aclose()


async def test_a_web_page_is_not_quoted(server: Server) -> None:
    ours = client(server)
    server.faults = [(404, "<!DOCTYPE HTML>\n<html><title>Error</title></html>")]
    with pytest.raises(ScorerError, match="HTTP 404: a web page: this is not a vLLM server"):
        await ours.score(Trajectory().context, pool(*STEPS))
    await ours.aclose()


async def test_no_answer_in_time(server: Server) -> None:
    ours = client(server)
    slow = client(server, timeout=0.2, retries=1)
    before = len(server.bodies)
    server.gate.clear()
    with pytest.raises(ScorerError, match=r"no answer \(ReadTimeout.*attempts: 2\)"):
        await slow.score(Trajectory().context, pool(*STEPS))
    assert len(server.bodies) == before + 2
    server.gate.set()
    assert len(await ours.score(Trajectory().context, pool(*STEPS))) == 3
    await ours.aclose()
    await slow.aclose()


def test_nobody_is_there(folder: Path) -> None:
    with serving(Server(folder)) as server:
        pass
    with pytest.raises(ScorerError, match=r"no answer \(ConnectError.*is `vllm serve"):
        client(server, retries=1)


async def test_a_cancelled_call_hangs_up(server: Server) -> None:
    """The server is told, so that it may stop; the next call is served."""
    ours = client(server)
    server.gate.clear()
    running = asyncio.create_task(ours.score(Trajectory().context, pool(*STEPS)))
    await asyncio.to_thread(server.wait_until_held, 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(server.hung_up.wait, 30)
    server.gate.set()
    assert len(await ours.score(Trajectory().context, pool(*STEPS))) == 3
    await ours.aclose()


async def test_a_call_that_is_cancelled_while_it_waits_for_its_turn(server: Server) -> None:
    ours = client(server, concurrency=1)
    server.gate.clear()
    first, second = (
        asyncio.create_task(ours.score(Trajectory().context, pool(*STEPS))) for _ in range(2)
    )
    await asyncio.to_thread(server.wait_until_held, 1)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    server.gate.set()
    assert len(await first) == 3
    assert len(await ours.score(Trajectory().context, pool(*STEPS))) == 3
    await ours.aclose()


async def test_requests_at_once_are_bounded(server: Server) -> None:
    ours = client(server, concurrency=2)
    server.gate.clear()
    calls = [
        asyncio.create_task(ours.score(Trajectory(f"{QUESTION} {i}").context, pool(*STEPS)))
        for i in range(7)
    ]
    await asyncio.to_thread(server.wait_until_held, 2)
    await asyncio.sleep(0.1)  # a third one would come now
    assert server.held == 2
    server.gate.set()
    assert all(len(scores) == 3 for scores in await asyncio.gather(*calls))
    assert server.most_held == 2
    await ours.aclose()


# -- event loops --------------------------------------------------------------------------------


def test_one_loop_after_the_other(server: Server) -> None:
    """Connections end with their loop; nothing is left open (warnings are errors)."""
    ours = client(server)

    async def score() -> list[float]:
        return await ours.score(Trajectory().context, pool(*STEPS))

    assert asyncio.run(score()) == asyncio.run(score())
    asyncio.run(ours.aclose())
    assert len(asyncio.run(score())) == 3


def test_two_loops_at_once(server: Server) -> None:
    ours = client(server)
    found: list[list[float]] = []
    meet = threading.Barrier(2)

    async def score() -> None:
        meet.wait()
        for _ in range(3):
            found.append(await ours.score(Trajectory().context, pool(*STEPS)))

    threads = [threading.Thread(target=lambda: asyncio.run(score())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(scores == found[0] for scores in found)
    asyncio.run(ours.aclose())


def test_closing_from_another_loop(server: Server) -> None:
    """`Rescue` closes its parts on its own loop, others may have used them on theirs."""
    ours = client(server)
    with asyncio.Runner() as runner:
        runner.run(ours.score(Trajectory().context, pool(*STEPS)))
        asyncio.run(ours.aclose())  # the first loop is there, but does not run
    assert len(asyncio.run(ours.score(Trajectory().context, pool(*STEPS)))) == 3


async def test_closing_while_the_other_loop_runs(server: Server) -> None:
    ours = client(server)
    await ours.score(Trajectory().context, pool(*STEPS))
    await asyncio.to_thread(lambda: asyncio.run(ours.aclose()))
    assert len(await ours.score(Trajectory().context, pool(*STEPS))) == 3
    await ours.aclose()


async def test_connections_are_kept(server: Server) -> None:
    ours = client(server)
    before = server.connections
    for _ in range(5):
        await ours.score(Trajectory().context, pool(*STEPS))
    assert server.connections == before + 1
    await ours.aclose()


async def test_it_can_be_built_inside_a_running_loop(server: Server) -> None:
    spec = HTTPPRMSpec(url=server.url, model="prm", tokenizer=str(server.folder))
    assert spec.build().max_context == 512


# -- options and secrets ------------------------------------------------------------------------


def configuration(**scorer: Any) -> dict[str, Any]:
    return {
        "proposers": {"base": {"policy": {"kind": "torch", "model": "tiny/base"}}},
        "scorer": {"kind": "http_prm", "url": "http://h:1", "model": "m", **scorer},
    }


def test_the_key_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = KEY
    assert client(server, api_key=KEY).max_context == 512
    monkeypatch.setenv("VLLM_API_KEY", f"{KEY}\n")
    assert client(server).max_context == 512
    monkeypatch.setenv("MINE", KEY)
    monkeypatch.setenv("VLLM_API_KEY", "wrong")
    assert client(server, api_key_env="MINE").max_context == 512
    assert client(server, api_key=KEY).max_context == 512  # the field comes first


def test_a_wrong_key_is_told_and_not_shown(server: Server) -> None:
    """The server repeats what it was sent."""
    server.key = "another"
    with pytest.raises(ScorerError, match=r"HTTP 401: \{\"error\": \"Unauthorized: Bearer \*\*\*"):
        client(server, api_key=KEY)
    with pytest.raises(ScorerError, match=r"HTTP 401.*give `api_key`"):
        client(server)


def test_the_key_is_in_no_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(configuration(api_key=KEY))
    spec = config.scorer
    assert isinstance(spec, HTTPPRMSpec)
    text = resolved_yaml(config)
    for shown in (
        repr(config),
        str(spec),
        text,
        config.model_dump_json(),
        json.dumps(spec.model_dump(mode="json")),
        str(spec.model_dump()),
    ):
        assert KEY not in shown
    assert "api_key" not in yaml.safe_load(text)["scorer"]
    assert config_hash(config) == config_hash(load_config(configuration()))
    assert load_config(yaml.safe_load(text)) == load_config(configuration())


def test_a_configuration_that_is_used_again_has_its_key() -> None:
    config = load_config(configuration(api_key=KEY))
    again = load_config(config, ["limits.max_steps=3"])
    assert isinstance(again, RescueConfig)
    spec = again.scorer
    assert isinstance(spec, HTTPPRMSpec)
    assert spec.api_key is not None
    assert spec.api_key.get_secret_value() == KEY
    assert again.limits.max_steps == 3
    assert load_config(config) == config


@pytest.mark.parametrize("bad", [f"{KEY}\nX: y", f"{KEY} ", f"ü{KEY}", "", 123456789, [KEY], True])
def test_a_key_that_cannot_be_sent_is_not_shown(bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"scorer\.api_key: ") as caught:
        load_config(configuration(api_key=bad))
    assert "123456789" not in str(caught.value)
    with pytest.raises(ConfigError, match="api_key") as caught:
        HTTPPRMSpec(url="http://h:1", model="m", api_key=bad)
    assert "123456789" not in str(caught.value)


def test_a_key_in_the_environment_that_cannot_be_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", f"{KEY} and more")
    with pytest.raises(ConfigError, match="VLLM_API_KEY: expected a key of visible") as caught:
        HTTPPRM("http://127.0.0.1:1", "m", tokenizer=str(folder))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "h:8000", "localhost", "ftp://h", "http://", "http://h:x", "http://h h", "http://h:99999"],
)
def test_wrong_urls(url: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"scorer\.url: expected http://HOST:PORT"):
        load_config(configuration(url=url))
    with pytest.raises(ConfigError, match="url: expected http://HOST:PORT"):
        HTTPPRM(url, "m", tokenizer=str(folder))


@pytest.mark.parametrize("url", [f"http://u:{KEY}@h:1", f"http://h:1/?k={KEY}", f"http://h/#{KEY}"])
def test_secrets_in_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="a key belongs in `api_key`") as caught:
        load_config(configuration(url=url))
    assert KEY not in str(caught.value)


def test_a_tokenizer_without_the_tag_is_refused(server: Server) -> None:
    with pytest.raises(ModelLoadError, match=r"step tag '<nope>' is \d+ tokens"):
        client(server, step_tag="<nope>")
    with pytest.raises(
        ConfigError, match=r"convention = 'both': expected 'step_tag' or 'separator'"
    ):
        client(server, convention="both")
    assert server.requests == []


def test_without_httpx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("kvrescue.scorers.http_prm", "kvrescue.scorers.http_client"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(DependencyError, match=r"pip install 'kvrescue\[http\]'"):
        Parts().scorer(HTTPPRMSpec(url="http://h:1", model="m"))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("timeout", 1e308, "a number greater than 0 and at most 86400"),
        ("timeout", float("inf"), "a number greater than 0 and at most 86400"),
        ("backoff", 1e308, "a number from 0 to 86400"),
        ("retries", 10**6, "a whole number from 0 to 100"),
    ],
)
def test_seconds_and_repetitions_are_bounded(field: str, value: float, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"{field} = .*: expected {expected}"):
        HTTPPRMSpec(**{"url": "http://h:1", "model": "m", field: value})
