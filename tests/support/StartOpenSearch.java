import java.util.List;
import java.util.stream.Collectors;

import org.codelibs.opensearch.runner.OpenSearchRunner;

import static org.codelibs.opensearch.runner.OpenSearchRunner.newConfigs;

/** One node on loopback, until its process ends: `StartOpenSearch FOLDER HTTP_PORT TRANSPORT_PORT [SETTING=VALUE…]`. */
public class StartOpenSearch {
    /** What a search server has, without languages for scripts: these take half of the time that it takes to start. */
    private static final List<String> MODULES = List.of(
        "org.opensearch.analysis.common.CommonAnalysisModulePlugin",
        "org.opensearch.analysis.common.CommonAnalysisPlugin",
        "org.opensearch.geo.GeoModulePlugin",
        "org.opensearch.index.mapper.MapperExtrasModulePlugin",
        "org.opensearch.index.mapper.MapperExtrasPlugin",
        "org.opensearch.transport.Netty4ModulePlugin",
        "org.opensearch.transport.Netty4Plugin");

    /** Version 3 has other names than version 2. */
    private static boolean isHere(String module) {
        return StartOpenSearch.class.getClassLoader().getResource(module.replace('.', '/') + ".class") != null;
    }

    public static void main(String[] arguments) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> {
            settings.put("network.host", "127.0.0.1");
            settings.put("http.port", arguments[1]);
            settings.put("transport.port", arguments[2]);
            settings.put("discovery.type", "single-node");
            settings.putList("discovery.seed_hosts");
            settings.put("cluster.routing.allocation.disk.threshold_enabled", false);
            for (int place = 3; place < arguments.length; place++) {
                String[] pair = arguments[place].split("=", 2);
                settings.put(pair[0], pair[1]);
            }
        });
        String modules = MODULES.stream().filter(StartOpenSearch::isHere).collect(Collectors.joining(","));
        runner.build(newConfigs().basePath(arguments[0]).numOfNode(1).clusterName("tailrace").moduleTypes(modules));
        Thread.currentThread().join();
    }
}
