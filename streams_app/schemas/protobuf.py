"""Decodes and encodes Protobuf messages; the optional package ``grpcio-tools`` compiles their schemas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc_tools.protoc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from streams_app.schemas.framing import FIRST_MESSAGE, message_indexes
from streams_app.schemas.schema import SchemaDefinition, json_of

MAIN: Final = "streams_app_schema.proto"
"""File name under which a schema is compiled. The schemas that it imports have the names by which it refers to them."""

STANDARD_FILES: Final = Path(grpc_tools.protoc.__file__).parent / "_proto"
_LONG: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


class ProtobufSchema:
    """Decodes and encodes the messages of one Protobuf schema."""

    def __init__(self, definition: SchemaDefinition) -> None:
        """Compile the schema and the schemas that it refers to."""
        self._file = _compiled(definition)

    def decode(self, body: bytes) -> Any:
        """Decode the bytes after the schema id into a dict of the fields by their names.

        An unset field has its default value, but an unset message or ``optional`` field is omitted.
        """
        indexes, content = message_indexes(body)
        descriptor = _message_at(self._file, indexes)
        message = message_factory.GetMessageClass(descriptor).FromString(content)
        found = json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        return _with_integers(descriptor, found)

    def encode(self, event: Any) -> bytes:
        """Return the event as a message of the first type of the schema, preceded by the message indexes of that type.

        A field of the event that the type does not have is an error.
        """
        message = message_factory.GetMessageClass(_message_at(self._file, (0,)))()
        json_format.Parse(json_of(event), message)
        return FIRST_MESSAGE + message.SerializeToString()


def schema_of(definition: SchemaDefinition) -> ProtobufSchema:
    """Compile a Protobuf schema, for decoding and encoding."""
    return ProtobufSchema(definition)


def _compiled(definition: SchemaDefinition) -> FileDescriptor:
    with TemporaryDirectory(prefix="streams-app-schema-") as folder:
        root = Path(folder).resolve()
        for name, text in {**definition.references, MAIN: definition.text}.items():
            path = (root / name).resolve()
            if not path.is_relative_to(root):
                raise ValueError(f"the reference {name!r} points outside of its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        output = root / "streams_app_descriptors"
        command = ["protoc", f"-I{root}", f"-I{STANDARD_FILES}", "--include_imports", f"--descriptor_set_out={output}", MAIN]
        if grpc_tools.protoc.main(command) != 0:
            raise ValueError("protoc cannot compile it; its message is on the standard error output of this process")
        files = FileDescriptorSet.FromString(output.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(MAIN)


def _message_at(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    messages = list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(messages):
            raise ValueError(f"the schema has no message {list(indexes)}")
        found = messages[index]
        # Message indexes do not count the map entry messages that the compiler generates.
        messages = [nested for nested in found.nested_types if not nested.GetOptions().map_entry]
    return found


def _with_integers(descriptor: Descriptor, found: dict[str, Any]) -> dict[str, Any]:
    """Convert the 64-bit integers of a decoded message from text, which they are in the JSON form of Protobuf, to numbers."""
    if descriptor.full_name.startswith("google.protobuf."):
        return found
    return {name: _integers_of(descriptor.fields_by_name[name], value) for name, value in found.items()}


def _integers_of(field: FieldDescriptor, value: Any) -> Any:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        entry = message.fields_by_name["value"]
        return {key: _integers_of(entry, one) for key, one in value.items()}
    if isinstance(value, list):
        return [_integer_of(field, one) for one in value]
    return _integer_of(field, value)


def _integer_of(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _with_integers(field.message_type, value) if isinstance(value, dict) else value
    return int(value) if field.cpp_type in _LONG else value
