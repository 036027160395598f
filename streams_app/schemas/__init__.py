"""Values framed by a schema registry: Avro, Protobuf and JSON Schema, decoded by schemas that are fetched once and cached.

The frame is that of Confluent: a zero byte, the id of the schema in four bytes, for Protobuf the indexes of the message, then the
body. Karapace and Apicurio (``/apis/ccompat/v7``) have the same interface. ``fastavro``, ``protobuf`` and ``grpcio-tools`` are
optional and imported with the first schema of their kind.
"""
