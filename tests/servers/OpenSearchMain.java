import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;

/**
 * One OpenSearch node for the tests: OpenSearchMain HOME PORT [SETTING=VALUE ...].
 *
 * <p>The distribution is not on Maven, its jars are; what its start script and its plugin folders do is done here. There is no
 * security plugin, so it speaks neither TLS nor passwords. CommonAnalysisPlugin is left out: it fails on newer Java.
 */
public class OpenSearchMain {
  static class OpenNode extends Node {
    OpenNode(Environment environment, Collection<Class<? extends Plugin>> plugins) {
      super(environment, plugins, false);
    }
  }

  @SuppressWarnings("unchecked")
  public static void main(String[] arguments) throws Exception {
    List<Class<? extends Plugin>> plugins = new ArrayList<>();
    for (String name : new String[] {
          "org.opensearch.transport.Netty4Plugin",
          "org.opensearch.painless.PainlessPlugin",
          "org.opensearch.index.reindex.ReindexPlugin"}) {
      plugins.add((Class<? extends Plugin>) Class.forName(name));
    }
    String home = arguments[0];
    Settings.Builder settings = Settings.builder()
        .put("path.home", home)
        .put("path.data", home + "/data")
        .put("path.logs", home + "/logs")
        .put("cluster.name", "test")
        .put("node.name", "n1")
        .put("network.host", "127.0.0.1")
        .put("http.port", arguments[1])
        .put("transport.port", "0")
        .put("discovery.type", "single-node")
        .put("transport.type", "netty4")
        .put("http.type", "netty4")
        .put("cluster.routing.allocation.disk.threshold_enabled", false)
        .put("node.processors", 2);
    for (int each = 2; each < arguments.length; each++) {
      String[] given = arguments[each].split("=", 2);
      settings.put(given[0], given[1]);
    }
    Path configuration = Paths.get(home, "config");
    Files.createDirectories(configuration);
    Node node = new OpenNode(
        InternalSettingsPreparer.prepareEnvironment(settings.build(), Collections.emptyMap(), configuration, () -> "n1"), plugins);
    try {
      node.start();
    } catch (Exception error) {
      error.printStackTrace();
      System.exit(1); // its threads would keep it alive
    }
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try {
        node.close();
      } catch (Exception error) {
        error.printStackTrace();
      }
    }));
    Thread.currentThread().join();
  }
}
