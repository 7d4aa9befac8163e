"""Every error of a command as one line on stderr, with its exit status; warnings are lines too."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from deepbasis.cli.options import as_options
from deepbasis.errors import DeepBasisError

_BROKEN_PIPE = 141  # 128 + SIGPIPE, as of a command that the signal ended
_INTERRUPTED = 130  # 128 + SIGINT


class Group(TyperGroup):
    """The commands, with every error as one line."""

    debug = False

    def main(self, *args: Any, **extra: Any) -> Any:
        standalone = extra.pop("standalone_mode", True)
        words = args[0] if args else extra.get("args")
        self.debug = "--debug" in (sys.argv if words is None else words)
        try:
            status = super().main(*args, **{**extra, "standalone_mode": False})
        except Exception as error:
            message = getattr(error, "format_message", None)  # what typer finds wrong with the arguments
            if message is None:
                raise
            context = getattr(error, "ctx", None)
            help_of = context.command_path if context is not None else "deepbasis"
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(message(), err=True)
            else:
                complain(f"{one_line(message()).rstrip('.')}; see '{help_of} --help'")
            status = 2
        if standalone:
            sys.exit(status if isinstance(status, int) else 0)
        return status

    def invoke(self, ctx: Any) -> Any:
        status = _status(lambda: super(Group, self).invoke(ctx), debug=self.debug)
        if status:
            raise typer.Exit(status)


def _status(work: Callable[[], Any], *, debug: bool) -> int:
    """Run the command; if it fails, say why in one line."""
    try:
        work()
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt as stop:
        complain(str(stop) or "interrupted")
        return _INTERRUPTED
    except BrokenPipeError:  # `| head`: the reader has seen enough
        _let_go_of_stdout()
        return _BROKEN_PIPE
    except Exception as error:
        if isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "format_message"):
            raise
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError):
            _let_go_of_stdout()
        expected = _expected(error)
        complain(
            expected or f"unexpected {type(error).__name__}: {error}; please report it, with the output of --debug"
        )
        return 2 if expected else 1


def _expected(error: Exception) -> str:
    """The message for an error that may happen; "" for an unexpected one."""
    if isinstance(error, DeepBasisError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("deepbasis"):
        return f"this needs {error.name}, which is not installed: pip install 'deepbasis[cli,plots]'"
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return "out of memory; use fewer --members, a smaller --batch-size or --rank, or fewer rows"
    if isinstance(error, OSError):
        name = f"'{error.filename}': " if error.filename else "reading or writing failed: "
        return f"{name}{(error.strerror or str(error)).lower()}"
    return ""


def _is_out_of_memory(error: Exception) -> bool:
    if "torch" not in sys.modules:
        return False
    from deepbasis.engine.memory import is_out_of_memory

    return is_out_of_memory(error)


def complain(message: str, kind: str = "error") -> None:
    print(f"deepbasis: {kind}: {one_line(message)}", file=sys.stderr)


def one_line(message: str) -> str:
    return printable(" ".join(message.split()))


def printable(text: str) -> str:
    """What others have written, without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _let_go_of_stdout() -> None:
    """What is still in the buffer cannot be written; the interpreter would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def notices(quiet: bool) -> Iterator[list[str]]:
    """Our warnings and the engine's log as lines on stderr when the block ends; the yielded list holds them too."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(one_line(record.getMessage()))  # type: ignore[method-assign]
    logger = logging.getLogger("deepbasis")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            yield lines
        ours = [warning for warning in caught if warning.category.__module__.startswith("deepbasis.")]
        lines += [one_line(str(warning.message)) for warning in ours]
        lines[:] = [as_options(line) for line in lines]
    finally:
        logger.removeHandler(handler)
    if not quiet:
        for line in lines:
            complain(line, "warning")
