import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Request–reply: NAMESERVER TOPIC [asks|replies]. A consumer replies to each message, and prints "replied STATUS"; a producer asks and prints
 * "answer TEXT" for each. With "asks" there is no consumer, and with "replies" no producer: it ends at the end of its input.
 */
public class Ask {
    static final long LIMIT_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        String role = arguments.length > 2 ? arguments[2] : "";
        DefaultMQProducer replier = producer("repliers", arguments[0]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("answering");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName("answering");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String text = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
                try {
                    Message reply = MessageUtil.createReplyMessage(message, text.getBytes(StandardCharsets.UTF_8));
                    System.out.println("replied " + replier.send(reply, 10_000).getSendStatus());
                } catch (Exception error) {
                    System.out.println("no reply: " + error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        if (!role.equals("asks")) {
            consumer.start();
            System.out.println("started");
        }
        if (role.equals("replies")) {
            while (System.in.read() >= 0) {
            }
            System.exit(0);
        }
        DefaultMQProducer asking = producer("asking", arguments[0]);
        for (String text : new String[] {"one", "two", "three"}) {
            System.out.println(ask(asking, new Message(arguments[1], text.getBytes(StandardCharsets.UTF_8))));
        }
        asking.shutdown();
        replier.shutdown();
        consumer.shutdown();
        System.exit(0);
    }

    /** The other forms of request() end in 5.3.3 when the message is stored, without an answer, whichever broker it is. */
    static String ask(DefaultMQProducer asking, Message question) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        AtomicReference<String> told = new AtomicReference<>("no answer");
        asking.request(question, (queues, message, argument) -> queues.get(0), null, new RequestCallback() {
            @Override
            public void onSuccess(Message answer) {
                told.set("answer " + new String(answer.getBody(), StandardCharsets.UTF_8));
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                told.set("failed " + error);
                done.countDown();
            }
        }, LIMIT_MS);
        done.await(LIMIT_MS, TimeUnit.MILLISECONDS);
        return told.get();
    }

    static DefaultMQProducer producer(String group, String nameserver) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameserver);
        producer.setInstanceName(group);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }
}
