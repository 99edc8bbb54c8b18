import java.nio.charset.StandardCharsets;
import java.util.Scanner;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a group: NAMESERVER GROUP TOPIC INSTANCE [asks]. It prints "started CLIENT-ID", and "handled QUEUE-OFFSET BODY" for each
 * message, and ends at the end of its input. With "asks" the broker assigns its queues (clientRebalance=false, from 5.0 on).
 */
public class Member {
    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName(arguments[3]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        if (arguments.length > 4) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.subscribe(arguments[2], "TagA || TagB");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                System.out.println("handled " + message.getQueueOffset() + " " + new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("started " + consumer.buildMQClientId());
        try (Scanner input = new Scanner(System.in)) {
            while (input.hasNextLine()) {
                input.nextLine();
            }
        }
        consumer.shutdown();
        System.exit(0);
    }
}
