import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.StringJoiner;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends numbered events of several keys until SIGTERM, one at a time: NAMESERVER TOPIC FIRST KEYS PAUSE_MS. A failed send is repeated. The
 * last line counts acknowledged and attempted sends per key, as that of worker_producer.py.
 *
 * The selector chooses from the queues that the topic had at the start: routes leave out a broker that is down, and a key must not move.
 */
public class KeyedProducer {
    static volatile boolean stopped;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int first = Integer.parseInt(arguments[2]);
        int keys = Integer.parseInt(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer("java-shop");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        queues.sort(Comparator.naturalOrder());
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped = true;
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(0);
        }));
        System.out.println("{\"event\": \"worker.ready\"}");
        System.out.flush();
        int[] acknowledged = new int[keys];
        int[] tried = new int[keys];
        for (int step = 0; !stopped; step++) {
            for (int key = 0; key < keys && !stopped; key++) {
                tried[key] = step + 1;
                String body = "{\"order\": " + (first + key) + ", \"step\": " + step + "}";
                if (send(producer, new Message(topic, "even", body.getBytes(StandardCharsets.UTF_8)), queues, key)) {
                    acknowledged[key] = step + 1;
                }
                Thread.sleep(Long.parseLong(arguments[4]));
            }
        }
        producer.shutdown();
        StringJoiner reported = new StringJoiner(", ");
        for (int key = 0; key < keys; key++) {
            reported.add("\"" + (first + key) + "\": [" + acknowledged[key] + ", " + tried[key] + "]");
        }
        System.out.println("{\"event\": \"worker.finished\", \"reported\": {" + reported + "}}");
        System.out.flush();
    }

    /** Send until the message is stored. Return whether it is, before SIGTERM. */
    static boolean send(DefaultMQProducer producer, Message message, List<MessageQueue> queues, int key) throws Exception {
        while (true) {
            try {
                SendStatus status = producer.send(message, (live, ignored, number) -> queues.get((Integer) number % queues.size()), key)
                    .getSendStatus();
                if (status == SendStatus.SEND_OK) {
                    return true;
                }
            } catch (Exception error) {
                System.err.println("again: " + error);
            }
            if (stopped) {
                return false;
            }
            Thread.sleep(100);
        }
    }
}
