import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** The use "litepull" of Trial. */
public class LitePull {
    static void run(String topic) throws Exception {
        Trial.send(topic, "TagA", "1");
        Trial.send(topic, "TagA", "2");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("group-" + topic);
        consumer.setNamesrvAddr(Trial.nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        Set<String> got = new TreeSet<>();
        Trial.await(() -> {
            for (MessageExt message : consumer.poll(100)) {
                got.add(Trial.text(message));
            }
            return got.equals(Trial.set("1", "2"));
        }, got);
        consumer.shutdown();
    }
}
