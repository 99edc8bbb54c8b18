import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Uses RocketMQ's own client in each way that a program does: NAMESERVER USE… Prints a line "ok USE" or "failed USE: WHY" for each. */
public class Trial {
    static final long LIMIT_MS = 60_000;
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
        producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Map<String, Use> uses = new java.util.HashMap<>();
        uses.put("sync", topic -> require(send(topic, "TagA", "1").getSendStatus() == SendStatus.SEND_OK, "not SEND_OK"));
        uses.put("async", Trial::async);
        uses.put("first", Trial::first);
        uses.put("oneway", Trial::oneway);
        uses.put("batch", Trial::batch);
        uses.put("compressed", Trial::compressed);
        uses.put("push", Trial::push);
        uses.put("tags", Trial::tags);
        uses.put("retry", Trial::retry);
        uses.put("delay", Trial::delay);
        uses.put("ordered", Trial::ordered);
        uses.put("resume", Trial::resume);
        uses.put("litepull", Trial::litePull);
        uses.put("broadcast", Trial::broadcast);
        uses.put("transaction", Trial::transaction);
        uses.put("sql", Trial::sql);
        for (String use : Arrays.asList(arguments).subList(1, arguments.length)) {
            try {
                uses.get(use).run("trial-" + use);
                System.out.println("ok " + use);
            } catch (Throwable error) {
                System.out.println("failed " + use + ": " + error);
            }
        }
        producer.shutdown();
        System.exit(0);
    }

    static void async(String topic) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        List<Throwable> errors = Collections.synchronizedList(new ArrayList<>());
        producer.send(message(topic, "TagA", "1"), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                errors.add(error);
                done.countDown();
            }
        });
        require(done.await(LIMIT_MS, TimeUnit.MILLISECONDS) && errors.isEmpty(), "" + errors);
    }

    /** Send at once to all queues that the route of TBW102 names, while the topic is new. */
    static void first(String topic) throws Exception {
        Set<String> sent = set("0");
        send(topic, "TagA", "0");
        for (int number = 1; number < 25; number++) {
            sent.add("" + number);
            if (number % 2 == 0) {
                producer.sendOneway(message(topic, "TagA", "" + number));
            } else {
                producer.send(message(topic, "TagA", "" + number), (queues, message, key) -> queues.get((Integer) key % queues.size()), number);
            }
        }
        consumeUntil(topic, "*", sent);
    }

    static void oneway(String topic) throws Exception {
        send(topic, "TagA", "first");
        producer.sendOneway(message(topic, "TagA", "1"));
        consumeUntil(topic, "*", set("first", "1"));
    }

    static void batch(String topic) throws Exception {
        send(topic, "TagA", "first");
        List<Message> messages = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            messages.add(message(topic, "TagA", "" + number));
        }
        SendResult result = producer.send(messages);
        require(result.getMsgId().split(",").length == 10 && result.getOffsetMsgId().split(",").length == 10, "" + result);
        consumeUntil(topic, "*", set("first", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"));
    }

    static void compressed(String topic) throws Exception {
        char[] body = new char[100_000];
        Arrays.fill(body, 'x');
        send(topic, "TagA", new String(body));
        consumeUntil(topic, "*", set(new String(body)));
    }

    static void push(String topic) throws Exception {
        Set<String> sent = new TreeSet<>();
        for (int number = 0; number < 100; number++) {
            send(topic, "TagA", "" + number);
            sent.add("" + number);
        }
        consumeUntil(topic, "*", sent);
    }

    static void tags(String topic) throws Exception {
        for (String tag : new String[] {"TagA", "TagB", "TagC"}) {
            send(topic, tag, tag);
        }
        Set<String> got = consumeUntil(topic, "TagA || TagC", set("TagA", "TagC"));
        require(!got.contains("TagB"), "" + got);
    }

    static void retry(String topic) throws Exception {
        send(topic, "TagA", "1");
        Set<Integer> attempts = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            attempts.add(messages.get(0).getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            return attempts.size() < 3 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(() -> attempts.containsAll(Arrays.asList(0, 1, 2)), attempts);
        consumer.shutdown();
    }

    static void delay(String topic) throws Exception {
        Message message = message(topic, "TagA", "1");
        message.setDelayTimeLevel(1);
        producer.send(message);
        consumeUntil(topic, "*", set("1"));
    }

    static void ordered(String topic) throws Exception {
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            producer.send(message(topic, "TagA", "" + number), (queues, message, key) -> queues.get((Integer) key % queues.size()), 7);
            sent.add("" + number);
        }
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        Set<String> suspended = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            String body = text(messages.get(0));
            if (body.equals("50") && suspended.add(body)) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            got.add(body);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(() -> got.size() >= sent.size(), got);
        consumer.shutdown();
        require(got.equals(sent) && suspended.size() == 1, "" + got);
    }

    static void resume(String topic) throws Exception {
        send(topic, "TagA", "before");
        consumeUntil(topic, "*", set("before"));
        send(topic, "TagA", "after");
        Set<String> got = consumeUntil(topic, "*", set("after"));
        require(!got.contains("before"), "the committed offset is used: " + got);
    }

    /** Versions before 4.6 have no lite pull consumer, so it is in a class of its own. */
    static void litePull(String topic) throws Exception {
        try {
            Class.forName("LitePull").getDeclaredMethod("run", String.class).invoke(null, topic);
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    static void broadcast(String topic) throws Exception {
        send(topic, "TagA", "old");
        List<Set<String>> members = new ArrayList<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            Set<String> got = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer consumer = consumer(topic, "*");
            consumer.setInstanceName("member-" + number);
            // The enum is in another package from version 5 on.
            for (java.lang.reflect.Method method : consumer.getClass().getMethods()) {
                if (method.getName().equals("setMessageModel")) {
                    method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], "BROADCASTING"));
                }
            }
            consumer.registerMessageListener(listener(got));
            consumer.start();
            members.add(got);
            consumers.add(consumer);
        }
        await(() -> {
            send(topic, "TagA", "new");
            return members.get(0).contains("new") && members.get(1).contains("new");
        }, members);
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
    }

    /** A message is delivered if its local transaction commits, and no other one is, also if only the broker's question learns that. */
    static void transaction(String topic) throws Exception {
        Set<String> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer transactional = new TransactionMQProducer("transactions");
        transactional.setNamesrvAddr(nameserver);
        transactional.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.valueOf((String) argument);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                asked.add(body + " " + message.getTopic());
                return body.equals("dropped") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactional.start();
        for (String body : Arrays.asList("ROLLBACK_MESSAGE", "COMMIT_MESSAGE", "dropped", "UNKNOW")) {
            String state = body.equals("dropped") ? "UNKNOW" : body;
            SendResult sent = transactional.sendMessageInTransaction(message(topic, "TagA", body), state);
            require(sent.getSendStatus() == SendStatus.SEND_OK, "" + sent);
        }
        await(() -> asked.containsAll(set("dropped " + topic, "UNKNOW " + topic)), asked);
        Set<String> got = consumeUntil(topic, "*", set("COMMIT_MESSAGE", "UNKNOW"));
        require(got.equals(set("COMMIT_MESSAGE", "UNKNOW")), "" + got);
        transactional.shutdown();
    }

    /** A subscription by SQL92 filters; one that can't be read is refused with the place: the consumer does not start. */
    static void sql(String topic) throws Exception {
        send(topic, "TagA", "1");
        send(topic, "TagB", "2");
        send(topic, "TagC", "3");
        Set<String> got = new TreeSet<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group-" + topic);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, MessageSelector.bySql("TAGS IN ('TagA', 'TagC') AND note IS NULL"));
        consumer.registerMessageListener(listener(got));
        consumer.start();
        await(() -> got.contains("1") && got.contains("3"), got);
        consumer.shutdown();
        require(!got.contains("2"), "filtered: " + got);
        DefaultMQPushConsumer wrong = new DefaultMQPushConsumer("wrong-" + topic);
        wrong.setNamesrvAddr(nameserver);
        wrong.subscribe(topic, MessageSelector.bySql("a >> 1"));
        wrong.registerMessageListener(listener(new TreeSet<>()));
        requireRefusal("at character 4 of the SQL92 expression", wrong::start);
    }

    interface Action {
        void run() throws Exception;
    }

    static void requireRefusal(String words, Action action) throws Exception {
        StringBuilder said = new StringBuilder();
        try {
            action.run();
        } catch (Exception error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                said.append(each).append(' ');
            }
        }
        require(said.indexOf(words) >= 0, "expected a refusal: " + said);
    }

    static Set<String> consumeUntil(String topic, String expression, Set<String> expected) throws Exception {
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(topic, expression);
        consumer.registerMessageListener(listener(got));
        consumer.start();
        await(() -> got.containsAll(expected), got.size() < 20 ? got : got.size());
        consumer.shutdown();
        return got;
    }

    static MessageListenerConcurrently listener(Set<String> got) {
        return (messages, context) -> {
            for (MessageExt message : messages) {
                got.add(text(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    static DefaultMQPushConsumer consumer(String topic, String expression) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group-" + topic);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, expression);
        return consumer;
    }

    static SendResult send(String topic, String tag, String body) throws Exception {
        return producer.send(message(topic, tag, body));
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static Set<String> set(String... bodies) {
        return new TreeSet<>(Arrays.asList(bodies));
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
