"""An evictor made of a scorer press of NVIDIA's kvpress: `kind: kvpress`.

    evictor: {kind: kvpress, press: KeyDiffPress, budget: 16, window: 12}
    evictor: {kind: kvpress, press: {name: StreamingLLMPress, n_sink: 4}, budget: 16, window: 12}

A press scores inside a forward pass, with the attention module and its input at hand; an evictor
has the cached keys and values and the newest queries. So this works for the presses whose score
reads no more than that. In kvpress 0.5.5 these are KnormPress, KeyDiffPress, LagKVPress, CURPress,
StreamingLLMPress, TOVAPress and SnapKVPress (its `window_size` within `window` and `observation`).
No list of them stands below: when the evictor is built the press scores a small cache, and one that
asks for more is refused with what it asked for.

kvpress pins another transformers than kvrescue: `make setup-kvpress` makes an environment of its
own, `make test-kvpress` tests this file in it.
"""

from __future__ import annotations

import importlib
import inspect
import math
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pydantic import ConfigDict, field_validator, model_validator

from kvrescue import Evictor, KVSlice, hookimpl
from kvrescue.errors import ConfigError, DependencyError, EvictorError, KVRescueError, nearest
from kvrescue.options import Options

if TYPE_CHECKING:
    from torch import Tensor

    from kvrescue.hookspecs import Register

__all__ = ["KVPress", "Press"]

_INSTALL = "`make setup-kvpress`, or `pip install kvpress==0.5.5` in an environment of its own"


class Press(Options):
    """A press by its class name in kvpress; what else is given are its options."""

    model_config = ConfigDict(extra="allow")

    name: str

    @model_validator(mode="after")
    def _known(self) -> Press:
        if "compression_ratio" in self.options:
            raise ConfigError("compression_ratio: `budget` and `window` say how much stays")
        self.build(0.0)
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def build(self, compression_ratio: float) -> Any:
        """The press. Raises ConfigError (no such press, wrong options) and DependencyError."""
        kvpress = _kvpress()
        found: Any = getattr(kvpress, self.name, None)
        if not (inspect.isclass(found) and issubclass(found, kvpress.ScorerPress)):
            presses = [
                name
                for name, value in vars(kvpress).items()
                if inspect.isclass(value) and issubclass(value, kvpress.ScorerPress)
            ]
            what = "is no scorer press" if found is not None else "is not in kvpress"
            raise ConfigError(f"press {self.name!r} {what}{nearest(self.name, presses)}")
        if getattr(found, "compress", None) is not kvpress.ScorerPress.compress:
            raise ConfigError(
                f"press {self.name!r} does more than score (it has its own `compress`), and an "
                "evictor only scores"
            )
        make: Any = found
        try:
            return make(compression_ratio=compression_ratio, **self.options)
        except Exception as error:
            raise ConfigError(f"press {self.name}: {type(error).__name__}: {error}") from error


class KVPress(Evictor):
    """score = `press.score(module, hidden_states, keys, values, attentions, kwargs)`.

    Keys and values are handed over in float32 and as they lie in the cache (position encoding
    applied, entries of evicted positions gone); `attentions` is the softmax over all entries of
    the newest queries. `compression_ratio` is what the eviction at hand drops. A press knows of no
    protected prompt.

    Raises ConfigError (the press cannot be used, and why) and DependencyError (no kvpress).
    """

    kind: ClassVar[str] = "kvpress"
    needs_values: ClassVar[bool] = True

    press: Press

    @field_validator("press", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _usable(self) -> KVPress:
        """Score the smallest cache that is ever evicted from: two rows, and one of them alone."""
        import torch

        made = torch.Generator().manual_seed(0)

        def numbers(heads: int, count: int) -> Tensor:
            return torch.randn(2, heads, count, 8, generator=made)

        size = self.bound + 1
        keys, values, queries = numbers(2, size), numbers(2, size), numbers(4, self.observation)
        last = KVSlice(keys[1:], queries[1:], values[1:])
        try:
            both, alone = self.score(KVSlice(keys, queries, values)), self.score(last)
        except Exception as error:
            reason = (
                error if isinstance(error, KVRescueError) else f"{type(error).__name__}: {error}"
            )
            raise ConfigError(f"press {self.press.name} cannot score a cache: {reason}") from error
        past = size - self.window
        if both.shape != keys.shape[:3] or not torch.allclose(
            both[1:, :, :past], alone[:, :, :past], rtol=1e-4, atol=1e-6
        ):
            raise ConfigError(
                f"press {self.press.name}: the scores of a sequence depend on chance or on the "
                f"sequences beside it (before the window of {self.window} entries)"
            )
        return self

    def score(self, kv: KVSlice) -> Tensor:
        """The press's scores in float32 [rows, kv_heads, length]."""
        rows, heads, length, dim = kv.keys.shape
        if kv.values is None:
            raise EvictorError("evictor 'kvpress': KVSlice.values is None; presses read values")
        kept = self.bound + (0 if kv.prefix is None else int(kv.prefix[0]))
        # A little less than what is dropped, so that rounding does not make it an entry more.
        press = self.press.build(max(0.0, (length - kept) / length - 1e-9))
        q_heads = kv.queries.shape[1]
        module = _Stand(
            "the attention module's {}",
            head_dim=dim,
            num_key_value_groups=q_heads // heads,
            config=_Stand(
                "the model's configuration ({})",
                num_attention_heads=q_heads,
                num_key_value_heads=heads,
                head_dim=dim,
            ),
        )
        scores: Tensor = press.score(
            module,
            _Stand("the hidden states ({})", shape=(rows, length, q_heads * dim)),
            kv.keys.float().contiguous(),
            kv.values.float().contiguous(),
            _Attention(kv, self.observation),
            _Stand("the forward pass's arguments ({})"),
        )
        return scores.float()


class _Stand(SimpleNamespace):
    """Stands in for what a press is handed and an evictor does not have: all but the given
    attributes are refused by their name."""

    def __init__(self, what: str, **known: Any) -> None:
        super().__init__(_what=what, **known)

    def __getattr__(self, name: str) -> NoReturn:
        what = vars(self).get("_what", "{}").format(name)
        raise EvictorError(f"it reads {what}, and an evictor has keys, values and queries only")

    def __getitem__(self, key: object) -> NoReturn:
        self.__getattr__(key if isinstance(key, str) else "entries")


class _Attention:
    """Attention weights [rows, q_heads, length, length], known for the newest queries only."""

    def __init__(self, kv: KVSlice, known: int) -> None:
        self._kv, self._known = kv, known

    def __getattr__(self, name: str) -> NoReturn:
        raise EvictorError("it reads the attention of all queries, not of the newest ones only")

    def __getitem__(self, index: Any) -> Tensor:
        """`attentions[..., -n:, entries]` with n <= observation."""
        queries = index[1] if isinstance(index, tuple) and len(index) == 3 else None
        if not (
            isinstance(queries, slice)
            and isinstance(queries.start, int)
            and queries.start < 0
            and queries.stop is None
        ):
            self.__getattr__("")
        if -queries.start > self._known:
            raise EvictorError(
                f"it reads the attention of the newest {-queries.start} queries, and "
                f"`observation` is {self._known}: raise it, or lower the press's window"
            )
        return _weights(self._kv)[index]


def _weights(kv: KVSlice) -> Tensor:
    """[rows, q_heads, observation, length]: causal softmax of q . k / sqrt(d), float32."""
    import torch

    group = kv.queries.shape[1] // kv.keys.shape[1]
    keys = kv.keys.float().repeat_interleave(group, dim=1)
    logits = kv.queries.float() @ keys.mT / math.sqrt(keys.shape[3])
    observed, length = logits.shape[2:]
    unseen = torch.ones(observed, length, dtype=torch.bool, device=keys.device)
    return logits.masked_fill(unseen.triu(length - observed + 1), float("-inf")).softmax(-1)


def _kvpress() -> ModuleType:
    try:
        return importlib.import_module("kvpress")
    except ModuleNotFoundError as error:
        if error.name == "kvpress":
            raise DependencyError(
                f"evictor 'kvpress' needs the package kvpress, which is not installed: {_INSTALL}"
            ) from error
        raise _broken(error) from error
    except Exception as error:
        raise _broken(error) from error


def _broken(error: Exception) -> DependencyError:
    return DependencyError(
        f"evictor 'kvpress': kvpress cannot be imported ({type(error).__name__}: {error}); it pins "
        f"another transformers than kvrescue: {_INSTALL}"
    )


@hookimpl
def kvrescue_register_evictors(register: Register) -> None:
    register("kvpress", KVPress)
