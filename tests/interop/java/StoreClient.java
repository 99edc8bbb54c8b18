import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.common.ClientErrorCode;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One action at a broker, with RocketMQ's own client.
 *
 * <p>send NAMESERVER TOPIC NAME COUNT DELAY_LEVEL BYTES: messages NAME-0, NAME-1, …, filled up with zeros to BYTES
 * <br>half NAMESERVER TOPIC NAME COUNT: transactions without an end
 * <br>timer NAMESERVER TOPIC NAME DELAY_MS: one message with a delay of any length
 * <br>consume NAMESERVER GROUP TOPIC COUNT: print "got BODY TIMES_CONSUMED" for each of COUNT messages, and store the progress
 */
public class StoreClient {
    static final long LIMIT_S = 120;

    public static void main(String[] arguments) {
        String action = arguments[0];
        String nameserver = arguments[1];
        try {
            if (action.equals("consume")) {
                consume(nameserver, arguments[2], arguments[3], Integer.parseInt(arguments[4]));
            } else {
                produce(action, nameserver, arguments);
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the program running
        }
        System.exit(0);
    }

    static void produce(String action, String nameserver, String[] arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("store-client");
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new Undecided());
        producer.start();
        String topic = arguments[2];
        String name = arguments[3];
        if (action.equals("timer")) {
            Message message = new Message(topic, bytes(name + "-0"));
            message.setDelayTimeMs(Long.parseLong(arguments[4]));
            send(producer, message);
        } else {
            for (int number = 0; number < Integer.parseInt(arguments[4]); number++) {
                Message message = new Message(topic, "TagA", name + "-" + number, bytes(name + "-" + number));
                if (action.equals("half")) {
                    require(producer.sendMessageInTransaction(message, null).getSendStatus() == SendStatus.SEND_OK, "not SEND_OK");
                } else {
                    int level = Integer.parseInt(arguments[5]);
                    message.setBody(Arrays.copyOf(message.getBody(), Integer.parseInt(arguments[6])));
                    if (level > 0) {
                        message.setDelayTimeLevel(level);
                    }
                    send(producer, message);
                }
            }
        }
        System.out.println("sent");
        producer.shutdown();
    }

    /** Sends a message, again while it can't have been stored: a broker that has just started may not have a route yet. */
    static void send(TransactionMQProducer producer, Message message) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (true) {
            try {
                require(producer.send(message).getSendStatus() == SendStatus.SEND_OK, "not SEND_OK");
                return;
            } catch (MQClientException error) {
                int code = error.getResponseCode();
                boolean unsent = code == ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION || code == ClientErrorCode.CONNECT_BROKER_EXCEPTION;
                if (!unsent || System.nanoTime() > end) {
                    throw error;
                }
                Thread.sleep(200);
            }
        }
    }

    static void consume(String nameserver, String group, String topic, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setAwaitTerminationMillisWhenShutdown(TimeUnit.SECONDS.toMillis(LIMIT_S)); // the result of the last call counts
        consumer.subscribe(topic, "*");
        CountDownLatch left = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                System.out.println("got " + new String(message.getBody(), StandardCharsets.UTF_8).replace("\0", "") + " " + message.getReconsumeTimes());
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        require(left.await(LIMIT_S, TimeUnit.SECONDS), left.getCount() + " messages did not arrive");
        consumer.shutdown();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    static class Undecided implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.UNKNOW;
        }
    }
}
