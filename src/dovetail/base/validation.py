"""Checks of the arguments of a call against its signature.

``@validated`` decorates every function that users call. An annotation is the rule: its types, its
literals, and the ``Rule`` of its alias. So a new option is checked by the type with which it is
declared. A check that depends on other arguments is left to the function itself.

Several functions may share options: each has a parameter ``**options: Unpack[Options]`` of a
``TypedDict``. ``help()`` and errors show its fields as arguments of their own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from os import PathLike
from textwrap import indent
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from dovetail.base.hints import OF_ARGUMENTS, OF_VALUES, nearest
from dovetail.errors import PlanError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Rule:
    """A condition for arguments of an annotated type."""

    said: str
    """The description of a valid argument, in errors."""
    holds: Callable[[Any], bool] = lambda _: True
    """The condition itself. It is asked only of values of the annotated type."""


@dataclass(frozen=True)
class Default:
    """The default of a field of a ``TypedDict`` of options. Without one it is None."""

    value: Any


Text: TypeAlias = Annotated[str, Rule("a text that is not empty", bool)]
ColumnName: TypeAlias = Annotated[str, Rule("the name of a column")]
ColumnNames: TypeAlias = Annotated[
    str | Sequence[str], Rule("the name of a column or a list of names")
]
Path: TypeAlias = Annotated[
    str | PathLike[str], Rule("a path, as a text or a pathlib.Path", lambda path: path != "")
]
Natural: TypeAlias = Annotated[
    int, Rule("a whole number from 0 to 2147483647", lambda n: 0 <= n < 1 << 31)
]
Positive: TypeAlias = Annotated[
    int, Rule("a whole number from 1 to 2147483647", lambda n: 1 <= n < 1 << 31)
]
Seconds: TypeAlias = Annotated[
    float, Rule("a number of seconds above 0, at most 2147483647", lambda s: 0 < s < 1 << 31)
]


def validated(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that users call: it raises ``PlanError``, before its body runs, for an
    argument that breaks its annotation.

    The error is a ``CallError`` if an argument is missing, unknown or one too many. It names the
    function or, for ``__init__``, the class. Defaults, and arguments without an annotation, are not
    checked. Fields of shared options (``**options: Unpack[Options]``) become arguments in the
    signature and the docstring.

    >>> @validated
    ... def pick(how: Literal["inner", "left"], *, buckets: Positive | None = None) -> None: ...
    >>> pick("outer")
    Traceback (most recent call last):
    dovetail.errors.PlanError: pick: how= is 'outer'. Give 'inner' or 'left'.
    """
    shared = _shared_options(function)
    signature = _with_options(inspect.signature(function), shared)
    operator = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        """Check the arguments, then call the function. ``wraps`` replaces this docstring."""
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise _call_error(operator, signature, args, kwargs, error) from None
        kinds = parameter_annotations(function)
        for name, value in arguments.items():
            if name in kinds:
                for argument, item in _named_arguments(signature.parameters[name], value):
                    _check_argument(operator, argument, item, kinds[name])
        return function(*args, **kwargs)

    if shared is not None:
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _DESCRIBED_ELSEWHERE.sub(
            lambda place: indent(_parameters_section(shared), place[1]), call.__doc__ or ""
        )
    return call


_DESCRIBED_ELSEWHERE = re.compile(r"^( *)\*\*options : \w+\n(?:\1 +.*\n)+", re.MULTILINE)
"""The place in a docstring of options that are described where they are defined."""
_WITH_DEFAULT = re.compile(r"Annotated\[(.*), Default\(.*\)\]")
"""The annotation of an option with a default, as text."""


def default_of(kind: Any) -> Any:
    """Return the default of a field of a ``TypedDict`` of options. It is the value of the
    ``Default`` in the field's annotation ``kind``, an ``Annotated``, or None if there is none.
    """
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note.value for note in notes if isinstance(note, Default)), None)


def _shared_options(function: Callable[..., Any]) -> Any:
    """Return the ``TypedDict`` class of a function's parameter ``**options: Unpack[Name]``, whose
    annotation is a text; None without such a parameter. Raises ``KeyError`` if the module of the
    function does not have that name.
    """
    for annotation in function.__annotations__.values():
        if match := re.fullmatch(r"Unpack\[(\w+)\]", str(annotation)):
            return function.__globals__[match[1]]
    return None


def _with_options(signature: inspect.Signature, shared: Any) -> inspect.Signature:
    """Return a copy of ``signature`` with a keyword-only argument for each field of ``shared`` in
    place of ``**options``. It has the field's default, None if it has none, and the text of its
    annotation. Without ``shared``, return ``signature`` itself.

    ``shared``: the ``TypedDict`` class of the options, or None. Its fields come last, in its order.
    """
    if shared is None:
        return signature
    annotations = inspect.get_annotations(shared)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default_of(kind),
            annotation=_WITH_DEFAULT.sub(r"\1", annotations[name].__forward_arg__),
        )
        for name, kind in get_type_hints(shared, include_extras=True).items()
    ]
    return signature.replace(parameters=[*parameters, *added])


def _parameters_section(shared: Any) -> str:
    """Return the body of the section ``Parameters`` in the docstring of ``shared``, a ``TypedDict``
    of options. The title and the docstring's indentation are left out, and a line break is at the
    end. Without such a section the text is a line break alone.
    """
    text = inspect.cleandoc(shared.__doc__ or "").partition("Parameters\n----------\n")[2]
    return re.split(r"\n\n?(?=\w[\w ]*\n-+\n)", text)[0] + "\n"


class CallError(PlanError, TypeError):
    """A call lacks an argument, or has one that it does not take; also a ``TypeError``."""


def _call_error(
    operator: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> CallError:
    """Return, not raise, the error of a call whose arguments do not fit its signature. It names the
    first unknown argument, else says that too many have no name, else names the missing ones.

    ``operator``: the function's name in the error. ``args``, ``kwargs``: the arguments of the call,
    ``self`` included. ``error``: Python's own error, whose text is shown if none of these is the
    cause.
    """
    parameters = {n: p for n, p in signature.parameters.items() if n not in ("self", "cls")}
    kinds = [parameter.kind for parameter in parameters.values()]
    by_name = [n for n, p in parameters.items() if p.kind is not p.POSITIONAL_ONLY]
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in kwargs:
            if name not in by_name:
                hint = OF_ARGUMENTS.get((operator, name)) or OF_ARGUMENTS.get((operator, "*"))
                remedy = hint or nearest(name, by_name)
                return CallError(operator, f"there is no argument {name}=", remedy)
    bound = len(args) - (len(signature.parameters) - len(parameters))
    if bound > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        if inspect.Parameter.VAR_KEYWORD in kinds:
            remedy = f"Give each a name: {operator}(name=...)"
        else:
            keyword_only = [f"{name}=" for name in by_name if name not in positional]
            remedy = (
                f"Give the others by name: {', '.join(keyword_only)}"
                if keyword_only
                else "Leave it out"
            )
        count = len(positional)
        return CallError(
            operator, f"{bound} arguments come without a name, at most {count} do", remedy
        )
    lacking = [
        name
        for n, (name, p) in enumerate(parameters.items())
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and name not in kwargs
        and (p.kind is p.KEYWORD_ONLY or n >= bound)
    ]
    if not lacking:
        return CallError(operator, str(error), f"Call it as {_call_text(operator, parameters)}")
    named = ", ".join(f"{name}=" for name in lacking)
    verb = "is" if len(lacking) == 1 else "are"
    return CallError(
        operator, f"{named} {verb} missing", f"Call it as {_call_text(operator, parameters)}"
    )


def _call_text(operator: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """Return the text of a call with the arguments that have no default, such as ``join(other,
    how=...)``, in their order. ``*columns`` and ``**named`` count among them. ``operator``: the
    name of the function. ``parameters``: by name, without ``self``.
    """
    stars: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    needed = [
        f"{name}=..." if p.kind is p.KEYWORD_ONLY else f"{stars.get(p.kind, '')}{name}"
        for name, p in parameters.items()
        if p.default is p.empty
    ]
    return f"{operator}({', '.join(needed)})"


def validated_fields(class_: C) -> C:
    """Decorate a dataclass, and return it. Its ``__init__`` is changed in place, so that
    ``validated`` checks the fields that it is given. Errors name the class; defaults are not
    checked.
    """
    class_.__init__ = validated(class_.__init__)  # type: ignore[misc]
    return class_


def accepts_argument_count(count: int, function: Callable[..., Any]) -> bool:
    """Return True if a function can be called with ``count`` positional arguments and no others, or
    if its signature is unknown. The function is not called.
    """
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _named_arguments(parameter: inspect.Parameter, value: Any) -> Iterable[tuple[str, Any]]:
    """Return (name in errors, value) for each argument that a call gave for ``parameter``: one
    named ``how=``, say; one for each item of ``**kwargs``; or one for each item of ``*args``, all
    named ``one of`` the parameter. ``value``: the value that ``inspect`` has bound to the
    parameter.
    """
    if parameter.kind is parameter.VAR_KEYWORD:
        return ((f"{name}=", item) for name, item in value.items())
    if parameter.kind is parameter.VAR_POSITIONAL:
        return ((f"one of {parameter.name}", item) for item in value)
    return [(f"{parameter.name}=", value)]


@cache
def parameter_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters by name, annotations in texts resolved,
    ``Annotated`` kept. Fields of shared options count as parameters. Parameters without an
    annotation are left out. The mapping is cached.

    Annotations are resolved at the first call, because they may use names that the module defines
    later. Raises ``NameError`` for a name that it never defines.
    """
    shared = _shared_options(function)
    annotations = {
        name: function.__annotations__[name]
        for name, parameter in inspect.signature(function).parameters.items()
        if name in function.__annotations__
        and (shared is None or parameter.kind is not parameter.VAR_KEYWORD)
    }
    stub: Any = SimpleNamespace(__annotations__=annotations)
    kinds = get_type_hints(stub, function.__globals__, include_extras=True)
    return kinds if shared is None else kinds | get_type_hints(shared, include_extras=True)


def _check_argument(operator: str, argument: str, value: Any, kind: Any) -> None:
    """Raise ``PlanError`` if ``value`` does not fit the annotation ``kind``. The error says what to
    give, or a hint for values that are often confused. ``operator``: the name of the call in the
    error. ``argument``: the name of the argument in the error, such as ``how=``.
    """
    if _fits(value, kind):
        return
    shown = shown_value(value)
    problem = next(_item_problems(value, kind), f"is {shown}")
    hint = OF_VALUES.get((operator, shown)) or OF_VALUES.get(("", shown))
    raise PlanError(
        operator, f"{argument} {problem}", hint or f"Give {_join_with_or(_describe_kind(kind))}"
    )


def _fits(value: Any, kind: Any) -> bool:
    """Return True if a value fits the annotation ``kind``: a union, ``Literal``, ``Annotated``,
    ``Sequence``, tuple or ``Mapping``, at any depth. Any other annotation counts as a class.
    """
    return _FITS.get(get_origin(kind), _fits_class)(value, kind)


def _fits_class(value: Any, kind: Any) -> bool:
    """Return True if a value is of ``kind``: a class, a protocol or a ``TypedDict``. Everything is
    of ``Any``. Of a generic class, such as ``PathLike[str]``, the arguments do not count.

    A bool is no ``int`` or ``float``, and an int is also a float. A value is of a protocol if it
    has all of its public members. Each mapping is of a ``TypedDict``, whatever its names. For a
    class of ``pyspark.sql``, a class of the same name there is enough, because Spark Connect has
    its own.
    """
    if is_typeddict(kind):
        return isinstance(value, Mapping)
    if kind in (int, float):
        numbers = (int,) if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if getattr(kind, "_is_protocol", False):
        # Static, because some objects (such as Spark's columns) make up every attribute on request.
        members = [name for name in vars(kind) if not name.startswith("_")]
        return all(inspect.getattr_static(value, name, None) is not None for name in members)
    if kind is Any or isinstance(value, get_origin(kind) or kind):
        return True
    # Spark Connect has classes of its own, with the same names as the classic ones.
    classes = (kind, type(value))
    both_of_spark = all(str(class_.__module__).startswith("pyspark.sql.") for class_ in classes)
    return both_of_spark and kind.__name__ == type(value).__name__


def _fits_rules(value: Any, kind: Any) -> bool:
    """Return True if a value fits the ``Annotated`` type ``kind``: it fits the annotated type, and
    then all its ``Rule``s hold. Other metadata does not count.
    """
    base, *rules = get_args(kind)
    return _fits(value, base) and all(r.holds(value) for r in rules if isinstance(r, Rule))


def _fits_alternative(value: Any, kind: Any) -> bool:
    """Return True if a value fits one of the alternatives of the union ``kind``."""
    return any(_fits(value, option) for option in get_args(kind))


def _fits_literal(value: Any, kind: Any) -> bool:
    """Return True if a value equals one of the literals of ``kind`` and has its type: True is not
    1.
    """
    return any(type(value) is type(literal) and value == literal for literal in get_args(kind))


def _fits_list(value: Any, kind: Any) -> bool:
    """Return True if a value is a sequence, not a text or bytes, whose items all fit; an empty one
    does. ``kind``: a ``Sequence`` or a tuple type, whose first argument is the type of all items.
    A tuple type takes only tuples, of any length.
    """
    listed = isinstance(value, get_origin(kind)) and not isinstance(value, (str, bytes, bytearray))
    return listed and all(_fits(item, get_args(kind)[0]) for item in value)


def _fits_mapping(value: Any, kind: Any) -> bool:
    """Return True if a value is a mapping whose names and values all fit. An empty one does.
    ``kind``: a ``Mapping`` with the type of names and that of values.
    """
    of_keys, of_values = get_args(kind)
    return isinstance(value, Mapping) and all(
        _fits(key, of_keys) and _fits(item, of_values) for key, item in value.items()
    )


_FITS: dict[Any, Callable[[Any, Any], bool]] = {
    Annotated: _fits_rules,
    Union: _fits_alternative,
    UnionType: _fits_alternative,
    Literal: _fits_literal,
    Sequence: _fits_list,
    tuple: _fits_list,
    Mapping: _fits_mapping,
}


def _item_problems(value: Any, kind: Any) -> Iterator[str]:
    """Yield a phrase for each item of a list that does not fit, such as ``has 3``, in its order.
    For a mapping it is ``has 3 for a name`` or, if the name fits, ``has 3 for 'amount'``.

    ``kind``: the annotation; each ``Sequence`` or ``Mapping`` type in a union is tried in turn.
    Yield nothing for a value that is no list, tuple or mapping, or if all items fit.
    """
    for option in _alternatives(kind):
        if get_origin(option) is Sequence and isinstance(value, (list, tuple)):
            yield from (f"has {shown_value(v)}" for v in value if not _fits(v, get_args(option)[0]))
        elif get_origin(option) is Mapping and isinstance(value, Mapping):
            of_keys, of_values = get_args(option)
            for key, item in value.items():
                if not _fits(key, of_keys):
                    yield f"has {shown_value(key)} for a name"
                elif not _fits(item, of_values):
                    yield f"has {shown_value(item)} for {shown_value(key)}"


def _alternatives(kind: Any) -> Iterator[Any]:
    """Yield the alternatives of the annotation ``kind`` in order: the types of a union, unions in
    it taken apart. Metadata of ``Annotated`` is dropped; a plain annotation yields itself.
    """
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for option in get_args(kind):
            yield from _alternatives(option)
    else:
        yield kind


def _describe_kind(kind: Any) -> list[str]:
    """Return descriptions of the values that the annotation ``kind`` allows, such as ``a text``, in
    order. There is one for each alternative of a union or literal, else a single one. In a union
    None is last. Equal descriptions are not merged.

    A sequence, tuple or mapping is described with its items, such as ``a list, each item of it a
    text``. The names of a mapping are described only if their type is ``Annotated``. A literal is
    shown as Python writes it. An ``Annotated`` type has the description of its first ``Rule`` alone
    or, without a rule, the first one of its plain type. Any other class has its description in
    ``_NAMES`` or, without one, its name.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return [
            next((r.said for r in args[1:] if isinstance(r, Rule)), *_describe_kind(args[0])[:1])
        ]
    if origin in (Union, UnionType):
        descriptions = [description for arg in args for description in _describe_kind(arg)]
        return [
            *(description for description in descriptions if description != "None"),
            *(["None"] if "None" in descriptions else []),
        ]
    if origin is Literal:
        return [repr(arg) for arg in args]
    if origin in (Sequence, tuple):
        return [f"a list, each item of it {_join_with_or(_describe_kind(args[0]))}"]
    if origin is Mapping:
        names = (
            f"each name {_join_with_or(_describe_kind(args[0]))}, "
            if get_origin(args[0]) is Annotated
            else ""
        )
        return [f"a mapping, {names}each value of it {_join_with_or(_describe_kind(args[1]))}"]
    return [_NAMES.get(origin or kind) or _with_article((origin or kind).__name__)]


_NAMES: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    bytes: "bytes",
    Any: "a value",
    NoneType: "None",
    Callable: "a function",
    PathLike: "a path",
}


def _join_with_or(alternatives: Sequence[str]) -> str:
    """Return phrases as ``a, b or c``, each once; one alone stays as it is. There must be at least
    one. A comma comes before the last ``or`` if an earlier phrase has a comma or an ``or`` itself.
    """
    *first, last = dict.fromkeys(alternatives)
    comma = "," if any("," in alternative or " or " in alternative for alternative in first) else ""
    return f"{', '.join(first)}{comma} or {last}" if first else last


def shown_value(value: Any) -> str:
    """Return a value as text for an error: None, a boolean, a number or a text as Python's
    ``repr``, cut after 80 characters with ``…``.

    A class or a function is shown by its name. Of all other values only the kind is shown, such as
    ``a pandas DataFrame``, since they may have secrets or fill a screen.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value)
        return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return _with_article(kind.__name__ if package in _OWN else f"{package} {kind.__name__}")


_SHOWN_MAX = 80
_OWN = {"builtins", "dovetail"}


def _with_article(name: str) -> str:
    """Return a noun behind its article: ``an`` before a vowel, else ``a``."""
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
