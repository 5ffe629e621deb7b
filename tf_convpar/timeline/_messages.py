"""The messages of TensorFlow's profiler service, as far as they are used.

TensorFlow's wheel has no generated code for the service. Importing the wheel
would also take seconds that a program which only records need not spend. Field
numbers are those of tsl/profiler/protobuf/profiler_service.proto,
profiler_options.proto and xplane.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory

_PACKAGE = "tf_convpar.timeline"
# For each message and field, its number and type. A "*" marks a repeated field,
# and a message's name is the type of a field that holds it. A protobuf map is a
# repeated message of keys and values.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Options": {
        "version": (5, "uint32"),
        "host_tracer_level": (2, "uint32"),
        "device_tracer_level": (3, "uint32"),
        "python_tracer_level": (4, "uint32"),
        "duration_ms": (9, "uint64"),
    },
    "Request": {
        "duration_ms": (1, "uint64"),
        "opts": (4, "Options"),
        "emit_xspace": (9, "bool"),
    },
    "Response": {"xspace": (8, "Space")},
    "Space": {"planes": (1, "*Plane"), "errors": (2, "*string")},
    "Plane": {
        "name": (2, "string"),
        "lines": (3, "*Line"),
        "event_metadata": (4, "*Metadata"),
        "stat_metadata": (5, "*Metadata"),
        "stats": (6, "*Stat"),
    },
    "Line": {
        "id": (1, "int64"),
        "name": (2, "string"),
        "timestamp_ns": (3, "int64"),
        "events": (4, "*Event"),
    },
    "Event": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "*Stat"),
    },
    "Stat": {
        "metadata_id": (1, "int64"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "string"),
        "ref_value": (7, "uint64"),
    },
    "Metadata": {"key": (1, "int64"), "value": (2, "Named")},
    "Named": {"name": (2, "string")},
}


def _classes() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tf_convpar/timeline.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            repeated, kind = kind.startswith("*"), kind.lstrip("*")
            is_message = kind in _MESSAGES
            described.field.add(
                name=name,
                number=number,
                label=(
                    field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
                ),
                type=(
                    field.TYPE_MESSAGE
                    if is_message
                    else field.Type.Value(f"TYPE_{kind.upper()}")
                ),
                type_name=f".{_PACKAGE}.{kind}" if is_message else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        )
        for name in _MESSAGES
    }


_CLASSES = _classes()
Request = _CLASSES["Request"]
Response = _CLASSES["Response"]
Space = _CLASSES["Space"]
