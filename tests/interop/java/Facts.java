import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What clients do less often: retries of their own, other compressions, questions about messages, traces, a reset while they run. Prints a
 * line "ok USE" or "failed USE: WHY" for each. After "ready" it waits until somebody resets the group group-facts-reset to the beginning.
 */
public class Facts {
    static final long LIMIT_MS = 90_000;
    static String nameserver;
    static DefaultMQProducer producer;

    interface Use {
        void run(String topic) throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        nameserver = arguments[0];
        producer = producer("producers", false);
        Map<String, Use> uses = new LinkedHashMap<>();
        uses.put("properties", Facts::properties);
        uses.put("retry", Facts::retry);
        uses.put("dead", Facts::dead);
        uses.put("ordered", Facts::ordered);
        uses.put("timer", Facts::timer);
        uses.put("LZ4", Facts::compressed);
        uses.put("ZSTD", Facts::compressed);
        uses.put("queries", Facts::queries);
        uses.put("trace", Facts::trace);
        uses.put("reset", Facts::reset);
        for (Map.Entry<String, Use> use : uses.entrySet()) {
            try {
                use.getValue().run("facts-" + use.getKey());
                System.out.println("ok " + use.getKey());
            } catch (Throwable error) {
                System.out.println("failed " + use.getKey() + ": " + error);
            }
        }
        producer.shutdown();
        System.exit(0);
    }

    static void properties(String topic) throws Exception {
        send(producer, topic, "1");
        MessageExt got = consume(topic, "group-" + topic, 1).get(0);
        require("DefaultCluster".equals(got.getProperty("CLUSTER")), "" + got);
        require(got.getProperty("WAIT") == null, "" + got);
    }

    /** Sends as DefaultMQPushConsumerImpl does when CONSUMER_SEND_MSG_BACK has failed. */
    static void retry(String topic) throws Exception {
        String group = "group-" + topic;
        send(producer, topic, "first");
        consume(topic, group, 1);
        producer.send(own(topic, group, 1));
        MessageExt got = consume(topic, group, 1).get(0);
        require(got.getTopic().equals(topic) && got.getReconsumeTimes() == 1 && text(got).equals("again"), "" + got);
    }

    static void dead(String topic) throws Exception {
        String group = "group-" + topic;
        producer.send(own(topic, group, 16));
        MessageExt got = consume("%DLQ%" + group, "group-of-the-dead", 1).get(0);
        require(got.getReconsumeTimes() == 16 && topic.equals(got.getProperty("RETRY_TOPIC")), "" + got);
    }

    /** An ordered consumer gives up after two failures, by a send to its group's retries. */
    static void ordered(String topic) throws Exception {
        send(producer, topic, "poison");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group-" + topic);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
            (MessageListenerOrderly) (messages, context) -> ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        consumer.start();
        MessageExt got = consume("%DLQ%group-" + topic, "group-of-the-ordered-dead", 1).get(0);
        require(text(got).equals("poison") && topic.equals(got.getProperty("RETRY_TOPIC")), "" + got);
        consumer.shutdown();
    }

    static Message own(String topic, String group, int times) {
        Message message = new Message("%RETRY%" + group, "again".getBytes(StandardCharsets.UTF_8));
        MessageAccessor.putProperty(message, "RETRY_TOPIC", topic);
        MessageAccessor.putProperty(message, "ORIGIN_MESSAGE_ID", "7F00000100002A9F0000000000000000");
        MessageAccessor.setReconsumeTime(message, String.valueOf(times));
        MessageAccessor.setMaxReconsumeTimes(message, "16");
        message.setDelayTimeLevel(1);
        return message;
    }

    static void timer(String topic) throws Exception {
        send(producer, topic, "1");
        Message message = message(topic, "2");
        MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", "5");
        try {
            producer.send(message);
        } catch (MQBrokerException refused) {
            require(refused.getResponseCode() == 13 && refused.getErrorMessage().contains("only delay levels"), "" + refused);
            return;
        }
        throw new IllegalStateException("it was taken");
    }

    /** Compresses by the algorithm in the topic's name. */
    static void compressed(String topic) throws Exception {
        System.setProperty("rocketmq.message.compressType", topic.substring("facts-".length()));
        DefaultMQProducer other = producer("producers-" + topic, false);
        System.clearProperty("rocketmq.message.compressType");
        char[] body = new char[100_000];
        Arrays.fill(body, 'x');
        send(other, topic, new String(body));
        MessageExt got = consume(topic, "group-" + topic, 1).get(0);
        require(text(got).equals(new String(body)) && got.getStoreSize() < 10_000, "" + got.getStoreSize());
        other.shutdown();
    }

    static void queries(String topic) throws Exception {
        SendResult sent = send(producer, topic, "1");
        MessageQueue queue = sent.getMessageQueue();
        MessageExt viewed = producer.viewMessage(topic, sent.getOffsetMsgId());
        require(text(viewed).equals("1"), "" + viewed);
        require(producer.earliestMsgStoreTime(queue) == viewed.getStoreTimestamp(), "" + viewed);
        require(producer.searchOffset(queue, viewed.getStoreTimestamp()) == 0, "lower");
        require(producer.searchOffset(queue, viewed.getStoreTimestamp() + 1) == 1, "behind the last");
        try {
            producer.queryMessage(topic, "key", 32, 0, System.currentTimeMillis());
        } catch (MQClientException none) {
            return;
        }
        throw new IllegalStateException("a query by key has found something");
    }

    /** A producer and a consumer trace a message: what was sent, and the begin and the end of the call. */
    static void trace(String topic) throws Exception {
        DefaultMQProducer traced = producer("producers-" + topic, true);
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        var strategy = new AllocateMessageQueueAveragely();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group-" + topic, null, strategy, true, null);
        prepare(consumer, topic, got).start();
        SendResult sent = send(traced, topic, "1");
        await(() -> got.size() == 1, got);
        List<MessageExt> traces = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer reader = consumer("RMQ_SYS_TRACE_TOPIC", "group-of-traces", traces);
        reader.start();
        for (String kind : List.of("Pub", "SubBefore", "SubAfter")) {
            await(() -> List.copyOf(traces).stream().anyMatch(each -> text(each).contains(kind) && text(each).contains(sent.getMsgId())), kind);
        }
        reader.shutdown();
        consumer.shutdown();
        traced.shutdown();
    }

    static void reset(String topic) throws Exception {
        for (int number = 0; number < 20; number++) {
            send(producer, topic, "" + number);
        }
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(topic, "group-" + topic, got);
        consumer.start();
        await(() -> got.size() == 20, got);
        Thread.sleep(6_000); // it commits every 5 s
        System.out.println("ready");
        await(() -> got.size() == 40, got.size());
        consumer.shutdown();
    }

    static List<MessageExt> consume(String topic, String group, int count) throws Exception {
        List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(topic, group, got);
        consumer.start();
        await(() -> got.size() >= count, got);
        consumer.shutdown();
        return got;
    }

    static DefaultMQPushConsumer consumer(String topic, String group, List<MessageExt> got) throws Exception {
        return prepare(new DefaultMQPushConsumer(group), topic, got);
    }

    static DefaultMQPushConsumer prepare(DefaultMQPushConsumer consumer, String topic, List<MessageExt> got) throws Exception {
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    static DefaultMQProducer producer(String group, boolean traced) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group, (org.apache.rocketmq.remoting.RPCHook) null, traced, null);
        made.setNamesrvAddr(nameserver);
        made.setSendMsgTimeout(10_000);
        made.start();
        return made;
    }

    static SendResult send(DefaultMQProducer by, String topic, String body) throws Exception {
        return by.send(message(topic, body));
    }

    static Message message(String topic, String body) {
        return new Message(topic, "TagA", body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static void await(Condition condition, Object state) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (!condition.holds()) {
            require(System.currentTimeMillis() < end, "not within " + LIMIT_MS + " ms: " + state);
            Thread.sleep(20);
        }
    }

    static void require(boolean holds, String why) {
        if (!holds) {
            throw new IllegalStateException(why);
        }
    }
}
