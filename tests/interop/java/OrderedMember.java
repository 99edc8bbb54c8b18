import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of an ordered group: NAMESERVER TOPIC GROUP NAME FILE. Appends a line for each message that it has handled, as
 * worker_consumer.py does: [name, order, step, queue, epoch, offset, begun, ended]. A client of RocketMQ has no epoch, so it writes 0. Both
 * times are those of the machine's monotonic clock. SIGTERM leaves the group.
 */
public class OrderedMember {
    static final Pattern BODY = Pattern.compile("\\{\"order\": (\\d+), \"step\": (\\d+)\\}");

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        String name = arguments[3];
        FileOutputStream file = new FileOutputStream(arguments[4], true);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                long begun = System.nanoTime() / 1000;
                Matcher body = BODY.matcher(new String(message.getBody(), StandardCharsets.UTF_8));
                if (!body.lookingAt()) {
                    throw new IllegalStateException("not an event of the producers");
                }
                work();
                String queue = topic + "@" + context.getMessageQueue().getBrokerName() + ":" + message.getQueueId();
                String place = "\"" + queue + "\", \"0\", " + message.getQueueOffset();
                String event = "\"" + name + "\", " + body.group(1) + ", " + body.group(2);
                String line = "[" + event + ", " + place + ", " + begun + ", " + System.nanoTime() / 1000 + "]\n";
                try {
                    file.write(line.getBytes(StandardCharsets.UTF_8));
                } catch (java.io.IOException error) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.shutdown();
            Runtime.getRuntime().halt(0);
        }));
        System.out.println("{\"event\": \"worker.ready\"}");
        System.out.flush();
        Thread.currentThread().join();
    }

    /** Take the time of a call, so that two calls of one queue at once are seen. */
    static void work() {
        try {
            Thread.sleep(2);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
