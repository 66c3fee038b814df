import java.io.FileReader;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.JsonByteArray;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Debezium's embedded engine into Kafka by a plain producer: `DebeziumToKafka ENGINE PRODUCER TOPIC MESSAGES`, where
 * the first two are files of properties. Prints both of its clocks when the broker has so many messages, and ends.
 */
public class DebeziumToKafka {
    private static final CountDownLatch done = new CountDownLatch(1);
    private static final AtomicReference<Throwable> problem = new AtomicReference<>();
    private static long first;
    private static long last;
    private static long missing;

    public static void main(String[] arguments) throws Exception {
        Properties settings = read(arguments[0]);
        String topic = arguments[2];
        missing = Long.parseLong(arguments[3]);
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(read(arguments[1]), new ByteArraySerializer(), new ByteArraySerializer());
        producer.partitionsFor(topic);  // it is connected before the clock runs
        DebeziumEngine<ChangeEvent<byte[], byte[]>> engine = DebeziumEngine.create(JsonByteArray.class)
            .using(settings)
            .using((success, message, error) -> fail(error == null ? new IllegalStateException(message) : error))
            .notifying(consumer(producer, topic))
            .build();
        long began = System.nanoTime();
        Thread thread = new Thread(engine);
        thread.setDaemon(true);
        thread.start();
        done.await();
        if (problem.get() != null) {
            problem.get().printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.out.printf("{\"from_start\": %f, \"from_first_event\": %f}%n", (last - began) / 1e9, (last - first) / 1e9);
        System.out.flush();
        Runtime.getRuntime().halt(0);  // a polite shutdown of the engine takes seconds and proves nothing
    }

    /** A batch's position is told once the broker has the batch: each change is there at least once. */
    private static DebeziumEngine.ChangeConsumer<ChangeEvent<byte[], byte[]>> consumer(
            KafkaProducer<byte[], byte[]> producer, String topic) {
        return new DebeziumEngine.ChangeConsumer<>() {
            @Override
            public void handleBatch(
                    List<ChangeEvent<byte[], byte[]>> records,
                    DebeziumEngine.RecordCommitter<ChangeEvent<byte[], byte[]>> committer) throws InterruptedException {
                if (first == 0) {
                    first = System.nanoTime();
                }
                for (ChangeEvent<byte[], byte[]> record : records) {
                    producer.send(new ProducerRecord<>(topic, record.key(), record.value()), (sent, error) -> fail(error));
                }
                producer.flush();
                committer.markProcessed(records.get(records.size() - 1));
                committer.markBatchFinished();
                missing -= records.size();
                if (missing <= 0) {
                    last = System.nanoTime();
                    done.countDown();
                }
            }

            @Override
            public boolean supportsTombstoneEvents() {
                return true;
            }
        };
    }

    private static void fail(Throwable error) {
        if (error != null && problem.compareAndSet(null, error)) {
            done.countDown();
        }
    }

    private static Properties read(String path) throws Exception {
        Properties found = new Properties();
        try (FileReader file = new FileReader(path)) {
            found.load(file);
        }
        return found;
    }
}
