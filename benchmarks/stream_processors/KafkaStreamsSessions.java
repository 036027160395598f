import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;

/** Sessions in event time by Kafka Streams, each emitted once when it is closed; no changelog, so that a crash loses its state. */
public final class KafkaStreamsSessions {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    /** One session so far; its times are those of its window. */
    record Session(int events, TreeSet<String> names) {
        Session with(Session other) {
            TreeSet<String> all = new TreeSet<>(names);
            all.addAll(other.names);
            return new Session(events + other.events, all);
        }

        String text(Windowed<String> window) {
            String listed = names.isEmpty() ? "" : '"' + String.join("\",\"", names) + '"';
            return "{\"account_id\":\"" + window.key() + "\",\"metrics\":[" + listed + "],\"fold\":{\"events\":" + events
                + ",\"first_event_ms\":" + window.window().start() + ",\"last_event_ms\":" + window.window().end() + "}}";
        }
    }

    static Session read(byte[] value) {
        try {
            JsonNode event = MAPPER.readTree(value);
            TreeSet<String> names = new TreeSet<>();
            event.get("metrics").fieldNames().forEachRemaining(names::add);
            return new Session(1, names);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static Serde<Session> serde() {
        Serializer<Session> to = (topic, session) -> {
            if (session == null) {
                return null;
            }
            byte[] names = String.join(",", session.names()).getBytes(StandardCharsets.UTF_8);
            return ByteBuffer.allocate(4 + names.length).putInt(session.events()).put(names).array();
        };
        Deserializer<Session> from = (topic, bytes) -> {
            if (bytes == null) {
                return null;
            }
            String names = new String(bytes, 4, bytes.length - 4, StandardCharsets.UTF_8);
            return new Session(ByteBuffer.wrap(bytes).getInt(), new TreeSet<>(names.isEmpty() ? List.of() : List.of(names.split(","))));
        };
        return Serdes.serdeFrom(to, from);
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("application.id", System.getenv("SESSIONS_OUTPUT"));
        settings.put("bootstrap.servers", System.getenv("SESSIONS_BOOTSTRAP"));
        settings.put("state.dir", new File("state").getAbsolutePath());
        settings.put("num.stream.threads", "2");
        settings.put("replication.factor", "1");
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.max.partition.fetch.bytes", "4194304");
        settings.put("consumer.max.poll.records", "5000");
        settings.put("producer.linger.ms", "5");
        settings.put("producer.batch.size", "65536");

        File began = new File(System.getenv("SESSIONS_BEGAN"));
        AtomicBoolean hasBegun = new AtomicBoolean();
        Materialized<String, Session, SessionStore<Bytes, byte[]>> store = Materialized.as("sessions");
        if ("memory".equals(System.getenv("SESSIONS_STORE"))) {
            store = store.withStoreType(Materialized.StoreType.IN_MEMORY);
        }
        // Closed sessions are looked for once a second, in which a backlog may pass hours: with the default retention, of the gap
        // alone, most of them would be dropped from the store before they are emitted.
        store = store.withKeySerde(Serdes.String()).withValueSerde(serde()).withRetention(Duration.ofHours(3)).withLoggingDisabled();

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(System.getenv("SESSIONS_SOURCE"), Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .mapValues(value -> {
                if (hasBegun.compareAndSet(false, true)) {
                    try {
                        began.createNewFile();
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                }
                return read(value);
            })
            .groupByKey(Grouped.with(Serdes.String(), serde()))
            .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofSeconds(60)))
            .emitStrategy(EmitStrategy.onWindowClose())
            .aggregate(() -> new Session(0, new TreeSet<>()), (key, event, session) -> session.with(event),
                (key, one, other) -> one.with(other), store)
            .toStream()
            .filter((window, session) -> session != null)
            .map((window, session) -> KeyValue.pair(window.key(), session.text(window)))
            .to(System.getenv("SESSIONS_OUTPUT"), Produced.with(Serdes.String(), Serdes.String()));
        new KafkaStreams(builder.build(), settings).start();
    }
}
