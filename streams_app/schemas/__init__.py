"""Decodes and encodes values whose schema is in a schema registry: Avro, Protobuf and JSON Schema.

Schemas are fetched once and cached. The frame of a value is that of Confluent: a zero byte, then the id of the schema in four
bytes. The body follows; for Protobuf, it begins with the indexes of the message. Karapace and Apicurio (``/apis/ccompat/v7``) have
the same interface as the registry of Confluent. ``fastavro``, ``protobuf`` and ``grpcio-tools`` are optional, and imported when a
declared format or the first schema of their type needs them.
"""
