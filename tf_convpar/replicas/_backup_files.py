"""Files of replicas, each on the machine of its replica.

They are written and read by operations that run there, as TensorFlow's
checkpoints: beside the old file and then renamed, with a sum of each array.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.cluster.joining import step
from tf_convpar.machines import host_of
from tf_convpar.machines import index_of
from tf_convpar.machines import kind_of
from tf_convpar.machines import task_of
from tf_convpar.replicas._member import Member
from tf_convpar.replicas.backup_record import Record
from tf_convpar.replicas.backup_record import plain

# How TensorFlow tells that a file is cut short, changed, gone, or another's.
DAMAGED = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.PermissionDeniedError,
)
_INDEX = ".index"
# In the names of files that TensorFlow has not yet renamed.
_PART = ".tempstate"
_RECORD = "record"
# TensorFlow takes names of files for patterns.
_PATTERNS = re.compile(r"[*?\[\]\\]")
# Of several errors at once.
_NUMBERED = re.compile(r"^\s*\(\d+\) [A-Z_]+:\s*")
_README = (
    "Backups of a training by tf_convpar: DiLoCo(backup_dir=...) goes on from "
    "them, and overwrites them.\n"
)


def check_folder(folder: str) -> None:
    """Raises ValueError for a name that TensorFlow would take for another."""
    if not folder or _PATTERNS.search(folder):
        raise ValueError(
            "Expected backup_dir to be a folder, with none of * ? [ ] \\ in "
            f"its name. Received: {folder!r}."
        )


@dataclasses.dataclass(frozen=True)
class Seen:
    """A file that a machine has.

    Attributes:
        host: The CPU that reads it.
        name: Without the endings of its two parts.
        record: What it says of itself; None where it is damaged.
        why: How.
    """

    host: str
    name: str
    record: Record | None
    why: str = ""

    @property
    def task(self) -> str:
        """Whose machine that is."""
        return named(self.host)


def named(device: str) -> str:
    """The task of a device, in words."""
    return " ".join(map(str, task_of(device)))


def reason(error: tf.errors.OpError) -> str:
    """What TensorFlow says, without the operation that says it.

    Of a graph's it says first where it was made, and then which node failed.
    """
    text: str = error.message.partition("\n\t [[")[0].strip()
    lines = text.splitlines() or [""]
    line = lines[-1] if text.startswith("Graph execution") else lines[0]
    line = line.rpartition("}} ")[2].partition(" [Op:")[0]
    return _NUMBERED.sub("", line)


def seen(host: str, folder: str) -> list[Seen]:
    """The files that a machine has, of whichever tasks.

    Raises:
        tf.errors.OpError: The machine is lost.
    """
    with step(), tf.device(host):
        names = tf.io.matching_files(f"{folder}/*/*{_INDEX}").numpy()
    files = []
    for name in sorted(bytes(n).decode() for n in names):
        file = name.removesuffix(_INDEX)
        try:
            with step(), tf.device(host):
                (text,) = tf.raw_ops.RestoreV2(
                    prefix=file,
                    tensor_names=[_RECORD],
                    shape_and_slices=[""],
                    dtypes=[tf.string],
                )
                record = Record.from_text(text.numpy(), file)
            files.append(Seen(host, file, record))
        except DAMAGED as error:
            files.append(Seen(host, file, None, reason(error)))
    return files


def empty_parts(host: str, folder: str) -> None:
    """Empties what tasks left that were killed while they wrote.

    That is as much as a backup each time. TensorFlow has no operation that
    removes a file.
    """
    with step(), tf.device(host):
        for name in tf.io.matching_files(f"{folder}/*/*{_PART}*").numpy():
            tf.io.write_file(name, "")


def write_end(file: Seen) -> None:
    """Writes in the place of a backup that its training has come to its end."""
    if file.record is None:
        return
    with step():
        text = file.record.end().text()
        _write_record(*_texts(file.name, text), file.host).numpy()


def _written(file: tf.Tensor, values: dict[str, tf.Tensor]) -> tf.Tensor:
    """Writes arrays on the device in scope; true once they are written.

    Only who waits for that is sure of it: on other tasks TensorFlow leaves an
    operation out whose result nobody waits for, and its errors.
    """
    save = tf.raw_ops.SaveV2(
        prefix=tf.identity(file),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.identity(value) for value in values.values()],
    )
    with tf.control_dependencies([save]):
        return tf.constant(True)


@functools.partial(tf.function, autograph=False)
def _write_record(file: tf.Tensor, text: tf.Tensor, host: str) -> tf.Tensor:
    with tf.device(host):
        return _written(file, {_RECORD: text})


@dataclasses.dataclass(frozen=True)
class _Part:
    """One of the arrays of a file."""

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    read: Callable[[], tf.Tensor]
    assign: Callable[[tf.Tensor], Any]


class State:
    """What a replica has, as arrays of a file on its machine.

    Args:
        member: It.
        folder: The folder of all tasks.

    Attributes:
        host: The CPU that writes and reads.
        common: What all replicas share, in words.
        own: What is this one's, likewise.
    """

    def __init__(self, member: Member, folder: str) -> None:
        replica, common = member.replica, member.common
        form, device = replica.form, replica.device
        self.host = host_of(device)
        self._device = device
        job, index = task_of(device)
        self._folder = f"{folder}/{job}-{index}"
        self._stem = (
            f"{self._folder}/{kind_of(device).lower()}-{index_of(device)}"
        )
        inner = replica.inner
        self._common = [
            *_parts("common", common.variables()),
            _Part(
                "averages",
                (form.kept.size,),
                tf.float32,
                replica.kept.read_value,
                replica.kept.assign,
            ),
        ]
        self._own = [
            _Part(
                "weights",
                (form.weights.size,),
                tf.as_dtype(form.weights.dtype),
                lambda: replica.weights.value,
                replica.weights.assign,
            ),
            *_parts("inner", inner),
        ]
        outer = common.optimizers[0]
        self.common = (
            *(_in_words(plain(v.path), v) for v in form.trained),
            *(_in_words(plain(v.path), v) for v in form.averages),
            f"{len(common.pieces)} fragments",
            f"outer {type(outer).__name__}, {len(outer.variables)} variables",
        )
        self.own = tuple(_in_words("variable", v) for v in inner)
        # Traced here: threads are not to do it.
        self._write = tf.function(
            self._write_in_graph, autograph=False
        ).get_concrete_function(*_texts("", ""))
        self._read = tf.function(self._read_in_graph, autograph=False)

    def file(self, number: int) -> str:
        """The name of a backup: of the last two each has one."""
        return f"{self._stem}.{number % 2}"

    def is_own(self, file: Seen) -> bool:
        """Whether a file is this replica's, with all of its state."""
        mine = file.name in (self.file(0), self.file(1))
        record = file.record
        return bool(
            mine
            and file.host == self.host
            and record
            and record.own == self.own
        )

    def write(self, record: Record) -> None:
        """Writes a backup."""
        with step():
            file = self.file(record.number)
            self._write(*_texts(file, record.text())).numpy()

    def read(self, file: Seen, own: bool) -> None:
        """Takes what a file has.

        Args:
            file: On any machine.
            own: Whether to take what is a replica's own too.

        Raises:
            tf.errors.OpError: It is damaged; nothing has changed.
        """
        function = self._read.get_concrete_function(
            *_texts(file.name), file.host, own
        )
        with step():
            function(*_texts(file.name)).numpy()

    def _write_in_graph(self, file: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
        parts = [*self._common, *self._own]
        with tf.device(self._device):
            values = {part.name: tf.identity(part.read()) for part in parts}
        with tf.device(self.host):
            # This makes the folder, which the next one does not.
            written = tf.io.write_file(f"{self._folder}/README", _README)
            with tf.control_dependencies([written]):
                return _written(file, {_RECORD: record} | values)

    def _read_in_graph(
        self, file: tf.Tensor, host: str, own: bool
    ) -> tf.Tensor:
        parts = [*self._common, *(self._own if own else ())]
        with tf.device(host):
            values = tf.raw_ops.RestoreV2(
                prefix=tf.identity(file),
                tensor_names=[part.name for part in parts],
                shape_and_slices=[""] * len(parts),
                dtypes=[part.dtype for part in parts],
            )
        with tf.device(self._device):
            for part, value in zip(parts, values, strict=True):
                part.assign(tf.ensure_shape(tf.identity(value), part.shape))
        return tf.constant(True)


def _parts(name: str, variables: Sequence[Any]) -> list[_Part]:
    return [
        _Part(
            f"{name}/{i}",
            tuple(v.shape),
            tf.as_dtype(v.dtype),
            lambda v=v: tf.convert_to_tensor(v),  # type: ignore[misc]
            v.assign,
        )
        for i, v in enumerate(variables)
    ]


def _in_words(name: str, variable: Any) -> str:
    dtype = tf.as_dtype(variable.dtype).name
    return f"{name} of {dtype} and shape {tuple(variable.shape)}"


def _texts(*values: str) -> list[tf.Tensor]:
    return [tf.constant(value) for value in values]
