import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Consumes folded records: drops a fold-id that it has seen, and keeps the newest version of each group. */
public class Consumer {
    public static void main(String[] arguments) throws Exception { // BOOTSTRAP TOPIC GROUP
        var options = new HashMap<String, Object>(Map.of(
            "bootstrap.servers", arguments[0], "group.id", arguments[2], "auto.offset.reset", "earliest"));
        var json = new ObjectMapper();
        var seen = new HashSet<String>();
        var versions = new HashMap<String, Long>(); // in production: in your database, written with the result
        try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[1]));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    var id = new String(record.headers().lastHeader("fold-id").value());
                    var version = json.readTree(record.value()).path("fold").path("version").asLong();
                    if (seen.add(id) && version > versions.getOrDefault(record.key(), -1L)) {
                        System.out.println("process " + record.key() + " " + id);
                        versions.put(record.key(), version);
                    }
                }
            }
        }
    }
}
