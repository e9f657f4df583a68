"""Client: JSON over HTTP with retries, for coroutines of any event loop.

Every loop has connections of its own; they are closed with `aclose`, or when their loop ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
from pydantic import SecretStr

from kvrescue.errors import ConfigError, ScorerError
from kvrescue.scorers.specs import is_key
from kvrescue.waiting import value_of

__all__ = ["Client", "api_key", "apart"]

T = TypeVar("T")

_BUSY: Final = frozenset({429, 502, 503, 504})
"""Statuses of a server, or of what stands before it, that may do better in a moment."""
_CONNECT: Final = 10.0
_LONGEST_WAIT: Final = 30.0
_EXCERPT: Final = 300


@dataclass(frozen=True, slots=True)
class _Lane:
    """What belongs to one event loop."""

    client: httpx.AsyncClient
    free: asyncio.Semaphore
    keeper: AsyncGenerator[None, None]
    """Closes the client; a loop that ends closes its generators."""


class Client:
    """Requests to one server.

    Args:
        url: see `specs.root`.
        key: sent as a bearer token; appears in no text.
        timeout: seconds that one answer may take.
        retries: how often a request is repeated that met no server, or a busy one.
        backoff: seconds before the first repetition, doubled each time.
        concurrency: requests at once, per event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        key: SecretStr | None,
        timeout: float,
        retries: int,
        backoff: float,
        concurrency: int,
    ) -> None:
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"url = {url!r}: {error}") from error
        self.url = url
        self.retries, self.backoff, self.concurrency = retries, backoff, concurrency
        self._key = key
        self._timeout = httpx.Timeout(timeout, connect=min(timeout, _CONNECT), pool=None)
        # Certificates take long to load, and plain HTTP needs none.
        self._verify = httpx.create_ssl_context() if self.url.startswith("https") else False
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}
        self._lock = threading.Lock()

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, advice: str = ""
    ) -> Any:
        """The JSON of an answer.

        `advice` is what to change when the server does not know what it is asked for.

        Raises ScorerError: there was no answer, no success, or no JSON.
        """
        lane = await self._lane()
        async with lane.free:
            for attempt in range(self.retries + 1):
                last = attempt == self.retries
                try:
                    answer = await lane.client.request(method, self.url + path, json=body)
                except httpx.RequestError as error:
                    if last or not isinstance(error, httpx.TransportError):
                        raise self._unanswered(method, path, error, attempt + 1) from error
                else:
                    if last or answer.status_code not in _BUSY:
                        return self._json(answer, f"{method} {self.url}{path}", advice)
                await asyncio.sleep(min(self.backoff * 2**attempt, _LONGEST_WAIT))
        raise AssertionError("not reached")

    async def aclose(self) -> None:
        """Close the connections of this event loop; later requests open new ones."""
        with self._lock:
            lane = self._lanes.pop(asyncio.get_running_loop(), None)
        if lane is not None:
            await lane.keeper.aclose()

    async def _lane(self) -> _Lane:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [known for known in self._lanes if known.is_closed()]:
                del self._lanes[other]
            lane = self._lanes.get(loop)
            if lane is not None:
                return lane
            headers = (
                {"Authorization": f"Bearer {self._key.get_secret_value()}"} if self._key else {}
            )
            client = httpx.AsyncClient(headers=headers, timeout=self._timeout, verify=self._verify)
            free = asyncio.Semaphore(self.concurrency)
            lane = self._lanes[loop] = _Lane(client, free, _keep(client))
        await anext(lane.keeper)
        return lane

    def _json(self, answer: httpx.Response, what: str, advice: str) -> Any:
        if not answer.is_success:
            text = f"{what}: HTTP {answer.status_code}: {self._excerpt(_message(answer.text))}"
            if answer.status_code in (401, 403):
                text += "; give `api_key`, or set the variable that `api_key_env` names"
            elif advice and (answer.status_code == 404 or "task" in text):
                text += f"; {advice}"
            raise ScorerError(text)
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            raise ScorerError(f"{what}: no JSON: {self._excerpt(answer.text)}") from error

    def _unanswered(
        self, method: str, path: str, error: httpx.RequestError, attempts: int
    ) -> ScorerError:
        reason = self._excerpt(f"{type(error).__name__} {error}".strip())
        return ScorerError(
            f"{method} {self.url}{path}: no answer ({reason}; attempts: {attempts}); is "
            "`vllm serve MODEL --runner pooling` running there?"
        )

    def _excerpt(self, text: str) -> str:
        if self._key:
            text = text.replace(self._key.get_secret_value(), "***")
        text = " ".join(text.split())
        return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}... ({len(text)} characters)"


async def _keep(client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.aclose()


def _message(body: str) -> str:
    """The message in an error as OpenAI's API has it, else the body."""
    try:
        found = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        if body.lstrip()[:1] == "<":
            return "a web page: this is not a vLLM server"
        return body or "(empty)"
    return str(found)


def apart(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine run to its end on a loop and a thread of its own.

    For constructors, which may be called inside a running loop or outside.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(asyncio.run(work))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kvrescue http", daemon=True).start()
    return value_of(future)


def api_key(given: SecretStr | None, variable: str) -> SecretStr | None:
    """The key to send: the one given (and checked), else that of an environment variable.

    Raises ConfigError for one there that cannot be sent, without showing it.
    """
    if given is not None:
        return given
    key = os.environ.get(variable, "").strip()
    if not key:
        return None
    if not is_key(key):
        raise ConfigError(f"{variable}: expected a key of visible ASCII characters, without spaces")
    return SecretStr(key)
