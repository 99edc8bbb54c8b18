import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A member of an ordered group and, if one is given, of a concurrent group: NAMESERVER TOPIC GROUP NAME FILE [TOPIC GROUP]. Appends a line
 * for each message that it has handled, as worker_consumer.py does: [name, order, step, queue, epoch, offset, begun, ended]. A client of
 * RocketMQ has no epoch, so it writes 0. Both times are those of the machine's monotonic clock.
 *
 * While the file FILE.hold exists, ordered calls go on. Each prints the event worker.holding with its queue. SIGTERM leaves the groups when
 * the running calls have ended: a shutdown frees the queues at once.
 */
public class OrderedMember {
    static final Pattern BODY = Pattern.compile("\\{\"order\": (\\d+), \"step\": (\\d+)\\}");
    static final ReentrantReadWriteLock calls = new ReentrantReadWriteLock();
    static volatile boolean stopping;
    static String name;
    static FileOutputStream file;
    static File hold;

    public static void main(String[] arguments) throws Exception {
        name = arguments[3];
        file = new FileOutputStream(arguments[4], true);
        hold = new File(arguments[4] + ".hold");
        DefaultMQPushConsumer ordered = consumer(arguments[0], arguments[1], arguments[2]);
        ordered.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            if (stopping || !calls.readLock().tryLock()) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            try {
                for (MessageExt message : messages) {
                    handle(message, context.getMessageQueue(), true);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            } catch (IOException error) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            } finally {
                calls.readLock().unlock();
            }
        });
        ordered.start();
        DefaultMQPushConsumer concurrent = arguments.length > 5 ? consumer(arguments[0], arguments[5], arguments[6]) : null;
        if (concurrent != null) {
            concurrent.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                try {
                    for (MessageExt message : messages) {
                        handle(message, context.getMessageQueue(), false);
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                } catch (IOException error) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            });
            concurrent.start();
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping = true;
            calls.writeLock().lock();
            ordered.shutdown();
            if (concurrent != null) {
                concurrent.shutdown();
            }
            Runtime.getRuntime().halt(0);
        }));
        System.out.println("{\"event\": \"worker.ready\"}");
        System.out.flush();
        Thread.currentThread().join();
    }

    static DefaultMQPushConsumer consumer(String nameserver, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    static void handle(MessageExt message, MessageQueue from, boolean ordered) throws IOException {
        long begun = System.nanoTime() / 1000;
        Matcher body = BODY.matcher(new String(message.getBody(), StandardCharsets.UTF_8));
        if (!body.lookingAt()) {
            throw new IllegalStateException("not an event of the producers");
        }
        String queue = "\"" + from.getTopic() + "@" + from.getBrokerName() + ":" + message.getQueueId() + "\"";
        if (ordered) {
            work(queue);
        }
        String event = "\"" + name + "\", " + body.group(1) + ", " + body.group(2);
        String place = queue + ", \"0\", " + message.getQueueOffset();
        String line = "[" + event + ", " + place + ", " + begun + ", " + System.nanoTime() / 1000 + "]\n";
        file.write(line.getBytes(StandardCharsets.UTF_8));
    }

    /** Take the time of a call, so that two calls of one queue at once are seen. */
    static void work(String queue) {
        try {
            Thread.sleep(2);
            if (hold.exists()) {
                System.out.println("{\"event\": \"worker.holding\", \"queue\": " + queue + "}");
                System.out.flush();
                while (hold.exists()) {
                    Thread.sleep(2);
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
