import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Signs its requests: NAMESERVER ACCESSKEY SECRET USE…, where a use is send:TOPIC, large:TOPIC, consume:TOPIC:GROUP or pull:TOPIC:GROUP.
 * Prints a line "ok USE" or "failed USE: WHY" for each.
 */
public class Signed {
    static final long LIMIT_MS = 60_000;
    static String nameserver;
    static RPCHook hook;

    public static void main(String[] arguments) throws Exception {
        nameserver = arguments[0];
        hook = new AclClientRPCHook(new SessionCredentials(arguments[1], arguments[2]));
        for (String use : Arrays.asList(arguments).subList(3, arguments.length)) {
            String[] words = use.split(":");
            try {
                switch (words[0]) {
                    case "send": send(words[1], 10); break;
                    case "large": send(words[1], 3_000_000); break;
                    case "consume": consume(words[1], words[2]); break;
                    default: pull(words[1], words[2]);
                }
                System.out.println("ok " + use);
            } catch (Throwable error) {
                StringBuilder said = new StringBuilder();
                for (Throwable each = error; each != null; each = each.getCause()) {
                    said.append(each).append(' ');
                }
                System.out.println("failed " + use + ": " + said.toString().replace('\n', ' '));
            }
        }
        System.exit(0);
    }

    static void send(String topic, int size) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("shop-" + size, hook);
        producer.setNamesrvAddr(nameserver);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        try {
            producer.send(new Message(topic, "TagA", new byte[size]));
        } finally {
            producer.shutdown();
        }
    }

    static void consume(String topic, String group) throws Exception {
        CountDownLatch got = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean done = got.await(LIMIT_MS, TimeUnit.MILLISECONDS);
        consumer.shutdown();
        if (!done) {
            throw new IllegalStateException("nothing within " + LIMIT_MS + " ms");
        }
    }

    @SuppressWarnings("deprecation")
    static void pull(String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(nameserver);
        consumer.start();
        try {
            MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
            consumer.pull(queue, "*", 0, 32);
        } finally {
            consumer.shutdown();
        }
    }
}
