# The worker. Built and started by docker-compose.yml; in production add your own streams.toml.
FROM python:3.13-slim
WORKDIR /app
COPY pyproject.toml constraints.txt LICENSE ./
COPY docs/pypi.md ./docs/
COPY streams_app ./streams_app
RUN pip install --no-cache-dir --constraint constraints.txt '.[avro,mysql,opensearch,otel,postgresql,protobuf]' \
    && useradd --system --uid 10001 --create-home --home-dir /data streams
USER streams
WORKDIR /data
ENV STREAMS_APP_CONFIG=/etc/streams_app/streams.toml PYTHONUNBUFFERED=1
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["streams-app"]
CMD ["worker"]
