// Kafka's Java producer in a loop of transactions; its answer is that of benchmarks/child.py.

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The first argument is a file of properties: the job's, and the producer's with a prefix. */
public final class Transactions {
    private static final String PRODUCER = "producer.";
    private static final double NANOS = 1e9;

    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final int messages;
    private final byte[][] values;
    /** Empty: no message has a key. */
    private final byte[][] keys;
    private final Callback callback;
    /** Null: no offsets are sent. */
    private final ConsumerGroupMetadata group;
    private long transactions;
    private final AtomicLong failed = new AtomicLong();

    public static void main(String[] arguments) throws IOException {
        Properties job = new Properties();
        try (var file = Files.newBufferedReader(Path.of(arguments[0]))) {
            job.load(file);
        }
        String answer;
        try {
            answer = "{\"measures\": " + new Transactions(job).measure(job) + "}";
        } catch (RuntimeException error) {
            // A text of JSON must not have quotation marks, backslashes and line ends.
            String text = error.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ");
            answer = "{\"failed\": \"" + text + "\"}";
        }
        System.out.println(answer);
        System.exit(0);
    }

    private Transactions(Properties job) throws IOException {
        topic = job.getProperty("topic");
        messages = Integer.parseInt(job.getProperty("messages"));
        values = pieces(Files.readAllBytes(Path.of(job.getProperty("values"))),
            Integer.parseInt(job.getProperty("size")));
        keys = job.containsKey("keys")
            ? pieces(Files.readAllBytes(Path.of(job.getProperty("keys"))),
                Integer.parseInt(job.getProperty("keySize")))
            : new byte[0][];
        group = job.containsKey("group")
            ? new ConsumerGroupMetadata(job.getProperty("group"))
            : null;
        callback = Boolean.parseBoolean(job.getProperty("callback"))
            ? (metadata, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                }
            }
            : null;
        Properties settings = new Properties();
        for (String name : job.stringPropertyNames()) {
            if (name.startsWith(PRODUCER)) {
                settings.setProperty(name.substring(PRODUCER.length()), job.getProperty(name));
            }
        }
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private String measure(Properties job) throws IOException {
        producer.initTransactions();
        double[] before = transact(Double.parseDouble(job.getProperty("warmUpSeconds")));
        double usedBefore = processorSeconds();
        long start = System.nanoTime();
        double[] times = transact(Double.parseDouble(job.getProperty("seconds")));
        double wall = (System.nanoTime() - start) / NANOS;
        double used = processorSeconds() - usedBefore;
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " messages failed");
        }
        Arrays.sort(times);
        int count = times.length;
        return String.format(Locale.ROOT,
            "{\"transactions_per_s\": %f, \"messages_per_s\": %f, \"p50_ms\": %f, \"p99_ms\": %f, "
                + "\"cpu_us\": %f, \"transactions\": %d, \"sent\": %d}",
            count / wall, count * (double) messages / wall, times[count / 2] * 1e3,
            times[(int) (count * 99L / 100)] * 1e3, used / count * 1e6, count,
            (before.length + (long) count) * messages);
    }

    /** Run transactions for some seconds, at least one; return the seconds of each. */
    private double[] transact(double seconds) {
        List<Double> times = new ArrayList<>();
        long start = System.nanoTime();
        long until = start + (long) (seconds * NANOS);
        while (start < until || times.isEmpty()) {
            producer.beginTransaction();
            for (int i = 0; i < messages; i++) {
                byte[] key = keys.length == 0 ? null : keys[i % keys.length];
                producer.send(new ProducerRecord<>(topic, key, values[i % values.length]), callback);
            }
            transactions++;
            if (group != null) {
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(transactions)), group);
            }
            producer.commitTransaction();
            long end = System.nanoTime();
            times.add((end - start) / NANOS);
            start = end;
        }
        return times.stream().mapToDouble(Double::doubleValue).toArray();
    }

    /** The processor time of this process, in hundredths of a second. */
    private static double processorSeconds() throws IOException {
        String text = Files.readString(Path.of("/proc/self/stat"));
        String[] fields = text.substring(text.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
    }

    private static byte[][] pieces(byte[] all, int size) {
        byte[][] found = new byte[all.length / size][];
        for (int i = 0; i < found.length; i++) {
            found[i] = Arrays.copyOfRange(all, i * size, (i + 1) * size);
        }
        return found;
    }
}
