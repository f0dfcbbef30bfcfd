"""The error that a person can repair: it becomes one message and exit code 2."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

MAX_LINES = 6
MAX_CHARACTERS = 850
"""Longest message. The command line adds its own words in front."""
_MAX_FIELD, _MAX_VALUE, _MAX_FIX = 80, 300, 300


class UserError(ValueError):
    """Bad input to the suite.

    ``str(error)`` is one message, ``field: value problem; fix``. It has several lines if one cause has
    several problems. It is `bounded`.

    Attributes:
        field: Name of the bad input: an option, a file, an array with the index of the first bad element.
        value: Its value.
        fix: The remedy.
    """

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.fix = fix
        # The text of an object, such as a PyTorch module, may have lines.
        shown = value if isinstance(value, str) else " ".join(reprlib.repr(value).split())
        field, shown = (_one_line(text, most) for text, most in ((field, _MAX_FIELD), (shown, _MAX_VALUE)))
        room = MAX_CHARACTERS - len(f"{field}: {shown} ; ")
        if len(problem) + len(fix) > room:
            fix = _shortened(fix, _MAX_FIX)
            problem = _shortened(problem, room - len(fix))
        words = " ".join(word for word in (shown, problem) if word)
        super().__init__(bounded(f"{field}: {words}; {fix}"))

    def at(self, place: str) -> UserError:
        """The error with its place, such as a case and a runner of it."""
        return UserError(self.field, self.value, f"{self.problem} (in {place})", self.fix)

    def of(self, option: str) -> UserError:
        """The error with the option that brought it, such as a file in a folder. Options keep their own."""
        if self.field.startswith("--"):
            return self
        shown = self.value if isinstance(self.value, str) else reprlib.repr(self.value)
        place = f"{self.field}: {shown}" if shown else self.field
        return UserError(option, place, self.problem, self.fix)

    def __reduce__(self) -> tuple[type[UserError], tuple[str, object, str, str]]:
        # Errors travel between processes. The default passes on the message alone.
        return type(self), (self.field, self.value, self.problem, self.fix)


def from_here(function: Callable[Arguments, Value], name: str = "") -> Callable[Arguments, Value]:
    """The function with errors of the user that begin at its caller: the message says all.

    pytest and Python then show the user's line and the message, and no code of the suite. Arguments that the
    function does not take are such errors, too; they name it as `name`, or as its code does.
    """

    @functools.wraps(function)
    def called(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Value:
        __tracebackhide__ = True
        try:
            try:
                return function(*arguments, **keywords)
            except TypeError:
                _require_fit(name, function, arguments, keywords)
                raise
        except UserError as error:
            raise error.with_traceback(None) from None

    return called


def with_arguments(cls: type[Value]) -> type[Value]:
    """A class whose wrong or missing arguments are errors of the user, as those of `from_here`."""
    cls.__init__ = from_here(cls.__init__)  # type: ignore[misc]
    return cls


def _require_fit(
    name: str, function: Callable[..., object], arguments: tuple[object, ...], keywords: dict[str, object]
) -> None:
    """Raises `UserError` for arguments that the function does not take."""
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        field = name or function.__qualname__.removesuffix(".__init__")
        named = (x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD)
        known = ", ".join(x.name for x in named if x.name != "self")
        raise UserError(field, "", f"takes other arguments ({error})", f"give {known}") from None


def bounded(message: str) -> str:
    """The message in at most `MAX_LINES` lines and `MAX_CHARACTERS` characters, all of them printable."""
    lines = message.split("\n")
    if len(lines) > MAX_LINES:
        left = len(lines) - MAX_LINES + 1
        lines = [*lines[: MAX_LINES - 1], f"and {left} more lines"]
    return _shortened("\n".join(map(_printable, lines)), MAX_CHARACTERS)


def _one_line(text: str, most: int) -> str:
    # The end of a path tells as much as its beginning. Escapes take room, and a long text time.
    return _shortened(_printable(_shortened(text, most)), most)


def _printable(text: str) -> str:
    """The text with escapes in place of characters that would control a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[: most - 3 - half]}...{text[-half:]}"


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of Python or NumPy, and no boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def require_once(field: str, names: Iterable[str]) -> None:
    """Raises `UserError` for a name that comes twice."""
    for name, number in Counter(names).items():
        if number > 1:
            raise UserError(field, name, "is named twice", "name it once")


def require_sequence(field: str, names: object, known: Iterable[str]) -> None:
    """Raises `UserError` unless `names` may hold names of `known`. A text is no sequence of letters."""
    if isinstance(names, str) or not isinstance(names, Collection) or isinstance(names, Mapping):
        known = tuple(known)
        name = names if isinstance(names, str) and names in known else known[0]
        raise UserError(field, names, "is no sequence of names", f"give a tuple, such as ({name!r},)")


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Names without duplicates, in the same order. Raises `UserError` for an unknown one."""
    known, names = tuple(known), tuple(names)
    for name in names:
        if not isinstance(name, str):
            raise UserError(kind, name, "is no name", "use " + ", ".join(known))
    unique = tuple(dict.fromkeys(names))
    for name in unique:
        if name not in known:
            near = difflib.get_close_matches(name[:_MAX_VALUE], known, n=1)
            hint = f"did you mean {near[0]!r}? known: " if near else "use "
            raise UserError(kind, name, "is not known", hint + ", ".join(known))
    return unique
