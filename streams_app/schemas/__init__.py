"""Decodes and encodes values framed by a schema registry: Avro, Protobuf and JSON Schema. Schemas are fetched once and cached.

The frame is that of Confluent: a zero byte, the id of the schema in four bytes, for Protobuf the indexes of the message, then the
body. Karapace and Apicurio (``/apis/ccompat/v7``) have the same interface. ``fastavro``, ``protobuf`` and ``grpcio-tools`` are
optional, and imported when a declared format or the first schema of their type needs them.
"""
