"""Dataclasses whose fields are checked when they are read.

What was read is compared with their annotations by Pydantic, which is imported
when it is needed, and not before. Errors name the file, the place in it, what
was expected and what is there:

    Expected a number, at least 0, at devices[1].times.conv2d.forward[3] of
    cluster.json. Received: -0.1.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import ClassVar
from typing import TypeVar

from annotated_types import Ge
from annotated_types import Gt
from annotated_types import Le
from annotated_types import MinLen

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

# Types of fields.
Name = Annotated[str, MinLen(1)]
# The largest int64, as TensorFlow's; Python's int has no limit.
_MOST = 2**63 - 1
Natural = Annotated[int, Ge(0), Le(_MOST)]
Count = Annotated[int, Ge(1), Le(_MOST)]
Quantity = Annotated[float, Ge(0)]
Rate = Annotated[float, Gt(0)]
Some = Annotated[tuple[T, ...], MinLen(1)]

# What was expected, by Pydantic's types of errors.
_EXPECTED = {
    "bool_type": "true or false",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "a number, above {gt:g},",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "a whole number, at most {le},",
    "string_too_short": "a name",
    "string_type": "a string",
    "too_short": "an array of at least {min_length}",
    "tuple_type": "an array",
}
_FIELDS = {"missing": "no", "unexpected_keyword_argument": "an unknown"}
# Arrays and objects within one another; ours have a tenth of it. What is deeper
# makes Python's and Pydantic's own readers and writers fail.
_DEEPEST = 100
# Layers and devices have names like these; others are quoted in a path.
_PLAIN = re.compile(r"[\w/-]+")


class Unexpected(ValueError):
    """Raised by `Checked.check`: fields that do not fit each other.

    ```python
    raise Unexpected("as many numbers as samples", "forward")
    ```

    Args:
        expected: What should be there, in words.
        *place: Place within the checked value: names and indexes.
        received: What is there, in words; None for the value itself.
    """

    def __init__(
        self, expected: str, *place: str | int, received: str | None = None
    ) -> None:
        super().__init__(expected)
        self.expected = expected
        self.place = place
        self.received = received


class Checked:
    """Base of dataclasses of which a file must hold all fields, and no others.

    ```python
    @dataclasses.dataclass(frozen=True)
    class Span(Checked):
        start: Quantity = 0.0  # In a file it must be there.
        end: Quantity = 0.0

        def check(self) -> None:
            if self.end < self.start:
                raise Unexpected("an end after the start", "end")
    ```
    """

    # Also for nested fields: 1 is not true, and NaN is refused.
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
    }

    def check(self) -> None:
        """Raises Unexpected where fields, each good, do not fit each other."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def check(value: Checked) -> Checked:
            value.check()
            return value

        schema = handler(source)
        for field in schema["schema"]["fields"]:
            # Defaults are for those who write programs, not files.
            while field["schema"]["type"] == "default":
                field["schema"] = field["schema"]["schema"]
        return core_schema.no_info_after_validator_function(check, schema)


def check_distinct(names: Iterable[str], field: str, what: str) -> None:
    """Raises Unexpected if two elements of a field have the same name."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise Unexpected(
                f"distinct names of {what}",
                *(field, i, "name"),
                received=f"{shown(name)} a second time",
            )
        seen.add(name)


def checked(content: type[T], value: Any, file: str) -> T:
    """Makes a value of a type from plain data, which is checked.

    ```python
    checked(dict[str, Span], {"a": {"start": 0, "end": 1}}, "spans.json")
    ```

    Args:
        content: Type of the value.
        value: The plain data.
        file: File that the data is from, for messages.

    Raises:
        ValueError: The data does not fit the type.
    """
    from pydantic import ValidationError

    check_depth(value, file)
    adapter = _adapter(content)  # type: ignore[arg-type]  # It is hashable.
    try:
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        raise ValueError(_sentence(error, file)) from error


def check_depth(value: Any, file: str) -> None:
    """Raises ValueError for plain data that is nested too deep to be ours."""
    level, depth = [value], 0
    while level := [v for v in level if isinstance(v, dict | list)]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(
                f"Expected at most {_DEEPEST} arrays and objects within one "
                f"another in {file}. Received more."
            )
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]


def shown(value: Any) -> str:
    """A value as a file has it, cut short."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.cache
def _adapter(content: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(content)


def _sentence(error: ValidationError, file: str) -> str:
    """Message for the first problem; one for all fields of an object."""
    problems = error.errors(include_url=False)
    problem = problems[0]
    kind, place, value = problem["type"], problem["loc"], problem["input"]
    context = problem.get("ctx", {})
    received = None
    if kind == "value_error":
        unexpected: Unexpected = context["error"]
        expected, received = unexpected.expected, unexpected.received
        place += unexpected.place
        for step in unexpected.place if received is None else ():
            value = value[step]
    elif kind in _FIELDS:
        place = place[:-1]
        expected = "every field of its format, and no other,"
        received = ", ".join(
            f"{_FIELDS[other['type']]} {other['loc'][-1]!r}"
            for other in problems
            if other["type"] in _FIELDS and other["loc"][:-1] == place
        )
    elif kind == "greater_than_equal":
        what = (
            "a whole number" if isinstance(context["ge"], int) else "a number"
        )
        expected = f"{what}, at least {context['ge']:g},"
    elif kind == "json_invalid":
        # The JSON was written just now: only lone surrogates can be wrong.
        expected = "whole characters, and no \\ud800 to \\udfff alone,"
        received = context["error"]
    elif kind in _EXPECTED:
        expected = _EXPECTED[kind].format(**context)
    else:
        expected = problem["msg"].removeprefix("Input should be ")
    where = f" at {_path(place)}" if place else ""
    return (
        f"Expected {expected}{where} of {file}. "
        f"Received: {shown(value) if received is None else received}."
    )


def _path(place: tuple[str | int, ...]) -> str:
    """A place as programs write it: `devices[1].times.conv2d`."""
    text = ""
    for step in place:
        if isinstance(step, str) and _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text
