import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The client program of Apache RocketMQ. It has the options and the output of the programs in Python (clients/harness.py). */
public final class RocketMQClient {
    private static final int THREADS = 64;
    private static final int BATCH = 1_000;
    private static final int BATCHES_IN_FLIGHT = 4;
    private static final int WINDOW = 2_000;
    private static final int QUEUES = 8;
    private static final int STAMP_DIGITS = 20;
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final long US_PER_TICK = 10_000;

    private final String work;
    private final Map<String, String> options = new HashMap<>();
    private final boolean create;
    private final String topic;
    private final int count;
    private final int warmup;
    private final byte[] body;
    private final Meter meter;

    private RocketMQClient(String[] arguments) {
        work = arguments[0];
        boolean creates = false;
        for (int i = 1; i < arguments.length; i++) {
            switch (arguments[i]) {
                case "--create" -> creates = true;
                // Topics stay: only space on the disk depends on it.
                case "--delete" -> { }
                default -> options.put(arguments[i].substring(2), arguments[++i]);
            }
        }
        create = creates;
        topic = options.get("topic");
        count = number("count");
        warmup = number("warmup");
        body = new byte[number("body-bytes")];
        Arrays.fill(body, (byte) 'x');
        String pids = options.get("server-pids");
        meter = new Meter(Arrays.stream(pids.split(",")).map(Long::parseLong).toList());
    }

    public static void main(String[] arguments) throws Exception {
        RocketMQClient client = new RocketMQClient(arguments);
        String figure = client.run();
        System.out.printf("{\"event\": \"done\", \"figure\": %s}%n", figure);
        System.out.flush();
        // Threads of the client library would delay the end.
        Runtime.getRuntime().halt(0);
    }

    private int number(String name) {
        return Integer.parseInt(options.get(name));
    }

    private String run() throws Exception {
        return switch (work) {
            case "one", "tasks", "pipeline", "batch", "fill", "e2e_send" -> produce();
            case "consume_batch" -> consume(BATCH, false);
            case "consume_one" -> consume(1, false);
            case "ordered_one" -> consume(1, true);
            case "e2e_receive" -> receive();
            default -> throw new IllegalArgumentException("unknown work " + work);
        };
    }

    // ---------------------------------------------------------------------------------------------------------------- send

    private interface Bulk {
        void send(int count) throws Exception;
    }

    private String produce() throws Exception {
        DefaultMQProducer producer = started();
        return switch (work) {
            case "one" -> one(producer);
            case "tasks" -> bulk(messages -> inThreads(THREADS, messages, 1, size -> check(producer.send(new Message(topic, body)))));
            case "pipeline" -> bulk(messages -> async(producer, messages));
            case "batch" -> bulk(messages -> batches(producer, messages));
            case "fill" -> {
                batches(producer, count);
                yield "null";
            }
            default -> paced(producer);
        };
    }

    private DefaultMQProducer started() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(options.get("address"));
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        // The client then collects asynchronous sends into batches, as the other clients do: seven times the rate. Sends that are awaited
        // would only wait longer.
        producer.setAutoBatch(work.equals("pipeline"));
        producer.start();
        if (create) {
            producer.createTopic("TBW102", topic, QUEUES, null);
        }
        producer.fetchPublishMessageQueues(topic);
        return producer;
    }

    private String one(DefaultMQProducer producer) throws Exception {
        long[] latencies = new long[count];
        for (int i = 0; i < warmup; i++) {
            check(producer.send(new Message(topic, body)));
        }
        meter.begin();
        for (int i = 0; i < count; i++) {
            long begun = nowUs();
            check(producer.send(new Message(topic, body)));
            latencies[i] = nowUs() - begun;
        }
        return meter.figure(count, latencies);
    }

    private String bulk(Bulk bulk) throws Exception {
        bulk.send(warmup);
        meter.begin();
        bulk.send(count);
        return meter.figure(count, null);
    }

    private void async(DefaultMQProducer producer, int messages) throws Exception {
        Semaphore window = new Semaphore(WINDOW);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                window.release();
            }

            @Override
            public void onException(Throwable error) {
                failure.set(error);
                window.release();
            }
        };
        for (int i = 0; i < messages; i++) {
            window.acquire();
            producer.send(new Message(topic, body), callback);
        }
        window.acquire(WINDOW);
        if (failure.get() != null) {
            throw new IllegalStateException("a send failed", failure.get());
        }
    }

    private void batches(DefaultMQProducer producer, int messages) throws Exception {
        inThreads(BATCHES_IN_FLIGHT, messages, BATCH, size -> {
            List<Message> batch = new ArrayList<>(size);
            for (int i = 0; i < size; i++) {
                batch.add(new Message(topic, body));
            }
            check(producer.send(batch));
        });
    }

    /** Calls `send` in some threads with the sizes of batches that make up all messages. */
    private void inThreads(int threads, int messages, int size, Bulk send) throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    for (int first = next.getAndAdd(size); first < messages; first = next.getAndAdd(size)) {
                        send.send(Math.min(size, messages - first));
                    }
                } catch (Exception error) {
                    failure.set(error);
                }
            });
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a send failed", failure.get());
        }
    }

    private String paced(DefaultMQProducer producer) throws Exception {
        CountDownLatch confirmed = new CountDownLatch(warmup + count);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                confirmed.countDown();
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        };
        long begun = nowUs();
        for (int i = 0; i < warmup + count; i++) {
            long leftUs = begun + i * 1_000_000L / number("rate") - nowUs();
            if (leftUs > 0) {
                TimeUnit.MICROSECONDS.sleep(leftUs);
            }
            byte[] stamped = body.clone();
            byte[] stamp = String.format("%020d", i < warmup ? 0 : nowUs()).getBytes(StandardCharsets.US_ASCII);
            System.arraycopy(stamp, 0, stamped, 0, STAMP_DIGITS);
            producer.send(new Message(topic, stamped), callback);
        }
        confirmed.await();
        return "null";
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("a send was not stored: " + result);
        }
    }

    // ------------------------------------------------------------------------------------------------------------- consume

    private DefaultMQPushConsumer consumer(int batch) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("address"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.setPullBatchSize(BATCH);
        consumer.setPullThresholdForQueue(4 * BATCH);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private String consume(int batch, boolean inOrder) throws Exception {
        AtomicInteger seen = new AtomicInteger();
        AtomicReference<String> figure = new AtomicReference<>();
        AtomicInteger measuredFrom = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(batch);
        java.util.function.IntConsumer counted = messages -> {
            int now = seen.addAndGet(messages);
            if (now >= warmup && now - messages < warmup && now < warmup + count) {
                meter.begin();
                measuredFrom.set(now);
            }
            if (now >= warmup + count && now - messages < warmup + count) {
                figure.set(meter.figure(now - measuredFrom.get(), null));
                done.countDown();
            }
        };
        if (inOrder) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                counted.accept(messages.size());
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                counted.accept(messages.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        meter.begin();
        consumer.start();
        done.await();
        return figure.get();
    }

    private String receive() throws Exception {
        started();
        long[] latencies = new long[count];
        AtomicInteger next = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = consumer(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                long sentUs = Long.parseLong(new String(message.getBody(), 0, STAMP_DIGITS, StandardCharsets.US_ASCII));
                if (sentUs > 0) {
                    int index = next.getAndIncrement();
                    if (index == 0) {
                        meter.begin();
                    }
                    latencies[index] = nowUs() - sentUs;
                    done.countDown();
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        System.out.println("{\"event\": \"ready\"}");
        System.out.flush();
        done.await();
        return meter.figure(count, latencies);
    }

    // ------------------------------------------------------------------------------------------------------------- measure

    /** Linux's monotonic clock, as Python reads it. */
    private static long nowUs() {
        return System.nanoTime() / 1_000;
    }

    /** Takes the time, the CPU time of this process and that of the server's processes. */
    private static final class Meter {
        private final List<Long> serverPids;
        private long begunUs;
        private long clientCpuUs;
        private long serverCpuUs;

        Meter(List<Long> serverPids) {
            this.serverPids = serverPids;
        }

        void begin() {
            serverCpuUs = serverCpu();
            clientCpuUs = cpu(ProcessHandle.current().pid());
            begunUs = nowUs();
        }

        String figure(int messages, long[] latencies) {
            long elapsed = nowUs() - begunUs;
            long client = cpu(ProcessHandle.current().pid()) - clientCpuUs;
            long server = serverCpu() - serverCpuUs;
            String shared = String.format(
                "{\"messages\": %d, \"elapsed_us\": %d, \"client_cpu_us\": %d, \"server_cpu_us\": %d", messages, elapsed, client, server);
            if (latencies == null) {
                return shared + ", \"p50_us\": null, \"p99_us\": null}";
            }
            Arrays.sort(latencies);
            return String.format("%s, \"p50_us\": %d, \"p99_us\": %d}", shared, rank(latencies, 50), rank(latencies, 99));
        }

        private long serverCpu() {
            return serverPids.stream().mapToLong(Meter::cpu).sum();
        }

        private static long rank(long[] sorted, int percent) {
            int rank = (sorted.length * percent + 99) / 100;
            return sorted[Math.max(rank, 1) - 1];
        }

        private static long cpu(long pid) {
            try {
                String text = Files.readString(Path.of("/proc/" + pid + "/stat"));
                String[] fields = text.substring(text.lastIndexOf(')') + 2).split(" ");
                return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) * US_PER_TICK;
            } catch (java.io.IOException ended) {
                return 0;
            }
        }
    }
}
