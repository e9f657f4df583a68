"""The errors reference: classes, their exit codes, and the exit codes that are no error's."""

from __future__ import annotations

import inspect
from typing import Final

from kvrescue import errors
from kvrescue.cli.failures import exit_codes
from kvrescue.errors import KVRescueError
from scripts.docs_site.text import table

__all__ = ["error_classes", "failures"]

_HEAD: Final = """\
# Errors and exit codes

Whatever a user can cause, or must know of, is a `KVRescueError`. Its message names the field, the
value and the way out; what raised it, in a plugin say, is its `__cause__`. On the command line it
is one line, `error: ...`, and the exit code of its class; `--json` prints
`{"error": {"type": ..., "message": ..., "exit_code": ...}}`.

```python
from kvrescue import KVRescueError
from kvrescue.evictors import RKV

try:
    RKV(budget=0)
except KVRescueError as error:
    print(type(error).__name__, error.exit_code, error)
```
"""


def error_classes() -> list[type[KVRescueError]]:
    """The base and every class that derives from it, in the order of the module."""
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, KVRescueError)
    ]


def failures() -> str:
    """The page as Markdown."""
    classes = table(
        ("class", "is a", "exit code", "when"),
        (
            (
                f"[`{error.__name__}`][kvrescue.errors.{error.__name__}]",
                f"`{error.__mro__[1].__name__}`",
                str(error.exit_code),
                inspect.getdoc(error) or "",
            )
            for error in error_classes()
        ),
    )
    codes = table(
        ("exit code", "meaning"), ((str(code), text) for code, text in exit_codes().items())
    )
    return "\n".join((_HEAD, "## Classes\n", classes, "## Exit codes\n", codes))
