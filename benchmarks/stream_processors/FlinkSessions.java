import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Sessions in event time by Flink in one process: heap state, no checkpoints, no delivery guarantee, which is its fastest. */
public final class FlinkSessions {
    /** One event: its account, its time, and the names that it changes. */
    public static final class Event {
        public String account;
        public long at;
        public String[] names;
    }

    /** One session so far. */
    public static final class Session {
        public String account;
        public long first = Long.MAX_VALUE;
        public long last = Long.MIN_VALUE;
        public int events;
        public TreeSet<String> names = new TreeSet<>();
    }

    /** Reads the JSON of a record. */
    public static final class Reader implements KafkaRecordDeserializationSchema<Event> {
        private final File began;
        private transient ObjectMapper mapper;

        Reader(String began) {
            this.began = new File(began);
        }

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Event> out) throws IOException {
            if (mapper == null) {
                mapper = new ObjectMapper();
                began.createNewFile();
            }
            JsonNode value = mapper.readTree(record.value());
            Event event = new Event();
            event.account = value.get("account_id").textValue();
            event.at = record.timestamp();
            List<String> names = new ArrayList<>(4);
            value.get("metrics").fieldNames().forEachRemaining(names::add);
            event.names = names.toArray(new String[0]);
            out.collect(event);
        }

        @Override
        public TypeInformation<Event> getProducedType() {
            return TypeInformation.of(Event.class);
        }
    }

    /** Adds an event to its session. */
    public static final class Fold implements AggregateFunction<Event, Session, Session> {
        @Override
        public Session createAccumulator() {
            return new Session();
        }

        @Override
        public Session add(Event event, Session session) {
            session.account = event.account;
            session.first = Math.min(session.first, event.at);
            session.last = Math.max(session.last, event.at);
            session.events++;
            for (String name : event.names) {
                session.names.add(name);
            }
            return session;
        }

        @Override
        public Session getResult(Session session) {
            return session;
        }

        @Override
        public Session merge(Session one, Session other) {
            one.first = Math.min(one.first, other.first);
            one.last = Math.max(one.last, other.last);
            one.events += other.events;
            one.names.addAll(other.names);
            return one;
        }
    }

    /** Writes a session as JSON. */
    public static final class Writer implements KafkaRecordSerializationSchema<Session> {
        private final String topic;

        Writer(String topic) {
            this.topic = topic;
        }

        @Override
        public ProducerRecord<byte[], byte[]> serialize(Session session, KafkaSinkContext context, Long timestamp) {
            String names = session.names.isEmpty() ? "" : '"' + String.join("\",\"", session.names) + '"';
            String value = "{\"account_id\":\"" + session.account + "\",\"metrics\":[" + names + "],\"fold\":{\"events\":" + session.events
                + ",\"first_event_ms\":" + session.first + ",\"last_event_ms\":" + session.last + "}}";
            byte[] key = session.account.getBytes(StandardCharsets.UTF_8);
            return new ProducerRecord<>(topic, key, value.getBytes(StandardCharsets.UTF_8));
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = System.getenv("SESSIONS_BOOTSTRAP");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2);
        environment.getConfig().enableObjectReuse();
        KafkaSource<Event> source = KafkaSource.<Event>builder()
            .setBootstrapServers(bootstrap)
            .setTopics(System.getenv("SESSIONS_SOURCE"))
            .setGroupId(System.getenv("SESSIONS_OUTPUT"))
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperty("fetch.max.wait.ms", "10")
            .setProperty("max.partition.fetch.bytes", "4194304")
            .setProperty("max.poll.records", "5000")
            .setDeserializer(new Reader(System.getenv("SESSIONS_BEGAN")))
            .build();
        KafkaSink<Session> sink = KafkaSink.<Session>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.NONE)
            .setProperty("linger.ms", "5")
            .setProperty("batch.size", "65536")
            .setRecordSerializer(new Writer(System.getenv("SESSIONS_OUTPUT")))
            .build();
        // A session ends with a gap of more than 60 s. One millisecond of disorder keeps one open whose gap is exactly that.
        environment.fromSource(source, WatermarkStrategy.forBoundedOutOfOrderness(Duration.ofMillis(1)), "events")
            .keyBy(event -> event.account)
            .window(EventTimeSessionWindows.withGap(Duration.ofSeconds(60)))
            .aggregate(new Fold())
            .sinkTo(sink);
        environment.execute("sessions");
    }
}
