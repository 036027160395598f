"""Decodes and encodes Protobuf messages; the optional package ``grpcio-tools`` compiles their schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc_tools.protoc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message

from streams_app.depth import TooDeepError
from streams_app.schemas.framing import FIRST_MESSAGE, message_indexes
from streams_app.schemas.schema import SchemaDefinition, json_of
from streams_app.unrepresentable import Unrepresentable

MAIN: Final = "streams_app_schema.proto"
"""File name under which a schema is compiled. The schemas that it imports have the names by which it refers to them."""

_LONG: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def _built_in_files() -> list[Path]:
    """Return the folders of the files that every client can import: ``google/protobuf``, ``confluent`` and ``google/type``."""
    folders = [Path(grpc_tools.protoc.__file__).parent / "_proto", Path(__file__).parent / "proto"]
    found = find_spec("google.type")
    return folders + [Path(one).parent.parent for one in (found and found.submodule_search_locations) or ()]


BUILT_IN_FILES: Final = _built_in_files()


class ProtobufSchema:
    """Decodes and encodes the messages of one Protobuf schema."""

    def __init__(self, definition: SchemaDefinition) -> None:
        self._file = _compiled(definition)

    def decode(self, body: bytes) -> Any:
        """Decode the bytes after the schema id into a dict of the fields by their names.

        An unset field has its default value, but an unset message or ``optional`` field is omitted. A message that JSON cannot
        represent, such as a ``google.protobuf.Timestamp`` of the year 10000, becomes an :class:`.Unrepresentable`.
        """
        indexes, content = message_indexes(body)
        descriptor = _message_at(self._file, indexes)
        message = message_factory.GetMessageClass(descriptor).FromString(content)
        try:
            return _fields_of(message)
        except RecursionError as error:  # messages in fields of the type Any may be nested in each other without a limit
            raise TooDeepError from error
        except (ValueError, TypeError, ArithmeticError, json_format.Error):
            return _lenient(message)

    def encode(self, event: Any) -> bytes:
        """Encode an event as a message of the first type of the schema; a field that this type does not have is an error."""
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
        folders = [root, *BUILT_IN_FILES]
        _require_valid(folders)
        output = root / "streams_app_descriptors"
        command = ["protoc", *(f"-I{folder}" for folder in folders), "--include_imports", f"--descriptor_set_out={output}", MAIN]
        if grpc_tools.protoc.main(command) != 0:
            raise ValueError("protoc cannot compile it; its message is on the standard error output of this process")
        files = FileDescriptorSet.FromString(output.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(MAIN)


def _require_valid(folders: Sequence[Path]) -> None:
    """Check a schema by the compiler, whose command would only print the faults; the ValueError has all, each with its line."""
    check = getattr(getattr(grpc_tools.protoc, "_protoc_compiler", None), "get_protos", None)
    if check is None:
        return  # a release without this function prints the faults
    try:
        check(MAIN.encode(), [str(folder).encode() for folder in folders])
    except Exception as error:
        faults = [_fault_text(one) for one in (error.args[0] if error.args and isinstance(error.args[0], list) else [error])]
        raise ValueError("; ".join(dict.fromkeys(faults))) from error


def _fault_text(fault: Any) -> str:
    if not hasattr(fault, "message"):
        return str(fault)
    file, text = (one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in (fault.filename, fault.message))
    where = [file] if file != MAIN else []
    return ": ".join([*where, *([f"line {fault.line + 1}"] if fault.line >= 0 else []), text])


def _message_at(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    messages = list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(messages):
            raise ValueError(f"the schema has no message {list(indexes)}")
        found = messages[index]
        # Message indexes do not count the map entry messages that the compiler generates.
        messages = [nested for nested in found.nested_types if not nested.GetOptions().map_entry]
    return found


def _fields_of(message: Message) -> Any:
    descriptor: Any = message.DESCRIPTOR
    found = json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=descriptor.file.pool,
    )
    return _with_integers(descriptor, found)


def _lenient(message: Message) -> Any:
    """Convert a message of which a part cannot be represented; slower than :func:`_fields_of`."""
    if message.DESCRIPTOR.full_name.startswith("google.protobuf."):
        try:
            return _fields_of(message)
        except (ValueError, TypeError, ArithmeticError, RecursionError, json_format.Error):
            return Unrepresentable.of(None)
    rest = type(message)()
    rest.CopyFrom(message)
    parts: dict[str, Any] = {}
    for field, value in message.ListFields():
        if not _is_of_messages(field):
            continue
        rest.ClearField(field.name)
        if isinstance(value, Mapping):
            parts[field.name] = {_map_key(key): _lenient(one) for key, one in value.items()}
        else:
            parts[field.name] = _lenient(value) if isinstance(value, Message) else [_lenient(one) for one in value]
    return _fields_of(rest) | parts


def _is_of_messages(field: FieldDescriptor) -> bool:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return kind.fields_by_name["value"].message_type is not None
    return kind is not None


def _map_key(key: Any) -> str:
    return str(key).lower() if type(key) is bool else str(key)


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
