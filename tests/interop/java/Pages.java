import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Asks what the pages of RocketMQ's dashboard ask, and rocketmq-exporter, by the calls of RocketMQ's tools that they use: NAMESERVER GROUP
 * TOPIC MESSAGES.
 * The group has one running member and has consumed the topic. Prints a line "ok PAGE" or "failed PAGE: WHY" for each.
 */
public class Pages {
    static final long LIMIT_MS = 60_000;
    static final int QUEUE_MESSAGES = 3;
    static final String[] EXPORTED_NUMBERS = (
        "bootTimestamp brokerVersion commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes "
            + "dispatchMaxBuffer earliestMessageTimeStamp getMessageEntireTimeMax msgGetTotalTodayMorning msgGetTotalTodayNow "
            + "msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning pageCacheLockTimeMills "
            + "pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putMessageAverageSize "
            + "putMessageEntireTimeMax putMessageSizeTotal putMessageTimesTotal queryThreadPoolQueueCapacity "
            + "queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainTransientStoreBufferNumbs sendThreadPoolQueueCapacity "
            + "sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp").split(" ");
    static final String[] EXPORTED_RATES = "getFoundTps getMissTps getTotalTps getTransferredTps putTps".split(" ");
    static final String[] RANGES = (
        "[<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s] [3~4s] [4~5s] [5~10s] [10s~]").split(" ");
    static DefaultMQAdminExt admin;
    static String nameserver;
    static String group;
    static String topic;
    static int messages;

    interface Page {
        void show() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        nameserver = arguments[0];
        group = arguments[1];
        topic = arguments[2];
        messages = Integer.parseInt(arguments[3]);
        admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(nameserver);
        admin.setInstanceName("pages");
        admin.start();
        Map<String, Page> pages = new LinkedHashMap<>();
        pages.put("cluster", Pages::cluster);
        pages.put("topics", Pages::topics);
        pages.put("route", Pages::route);
        pages.put("stats", Pages::stats);
        pages.put("rates", Pages::rates);
        pages.put("exporter", Pages::exporter);
        pages.put("groups", Pages::groups);
        pages.put("group-of-topic", Pages::groupOfTopic);
        pages.put("connection", Pages::connection);
        pages.put("producers", Pages::producers);
        pages.put("messages", Pages::messagesByTime);
        pages.put("message", Pages::messageById);
        pages.put("topic-changes", Pages::topicChanges);
        pages.put("reset", Pages::reset);
        for (Map.Entry<String, Page> page : pages.entrySet()) {
            try {
                page.getValue().show();
                System.out.println("ok " + page.getKey());
            } catch (Throwable error) {
                System.out.println("failed " + page.getKey() + ": " + error);
            }
        }
        System.exit(0);
    }

    static void check(boolean holds, Object found) {
        if (!holds) {
            throw new IllegalStateException(String.valueOf(found));
        }
    }

    static List<String> brokers() throws Exception {
        List<String> addresses = new ArrayList<>();
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            addresses.add(broker.getBrokerAddrs().get(MixAll.MASTER_ID));
        }
        return addresses;
    }

    static void cluster() throws Exception {
        var clusters = admin.examineBrokerClusterInfo();
        check(clusters.getClusterAddrTable().get("DefaultCluster").size() == 2, clusters.getClusterAddrTable());
        for (String address : brokers()) {
            var shown = admin.fetchBrokerRuntimeStats(address).getTable();
            for (String name : new String[] {"brokerVersionDesc", "putTps", "getTransferedTps", "msgPutTotalTodayMorning",
                "msgPutTotalTodayNow", "msgPutTotalYesterdayMorning", "msgGetTotalTodayNow", "bootTimestamp", "runtime"}) {
                check(shown.containsKey(name), name + " is missing: " + shown.keySet());
            }
            check(admin.getBrokerConfig(address).containsKey("brokerName"), admin.getBrokerConfig(address));
        }
    }

    static void topics() throws Exception {
        Set<String> listed = admin.fetchAllTopicList().getTopicList();
        check(listed.contains(topic) && listed.contains("%RETRY%" + group), listed);
        check(admin.getTopicClusterList(topic).contains("DefaultCluster"), admin.getTopicClusterList(topic));
        int with = 0;
        for (String address : brokers()) {
            with += admin.getAllTopicConfig(address, 5_000).getTopicConfigTable().containsKey(topic) ? 1 : 0;
            check(admin.examineTopicConfig(address, topic).getWriteQueueNums() == 2, admin.examineTopicConfig(address, topic));
        }
        check(with == 2, with);
    }

    static void route() throws Exception {
        var route = admin.examineTopicRouteInfo(topic);
        check(route.getBrokerDatas().size() == 2 && route.getQueueDatas().size() == 2, route);
    }

    static void stats() throws Exception {
        long total = 0;
        for (var queue : admin.examineTopicStats(topic).getOffsetTable().values()) {
            total += queue.getMaxOffset() - queue.getMinOffset();
        }
        check(total == messages, total);
    }

    /** The charts of the first page. A broker that has no samples of a key yet says so with an error, as RocketMQ's does. */
    static void rates() throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        for (String key : new String[] {topic, topic + "@" + group}) {
            for (String address : brokers()) {
                for (boolean known = false; !known; ) {
                    try {
                        var sampled = admin.viewBrokerStatsData(address, key.equals(topic) ? "TOPIC_PUT_NUMS" : "GROUP_GET_NUMS", key);
                        check(sampled.getStatsMinute().getTps() >= 0 && sampled.getStatsDay().getSum() >= 0, sampled);
                        known = true;
                    } catch (Exception error) {
                        check(System.currentTimeMillis() < end, error);
                        Thread.sleep(500);
                    }
                }
            }
        }
    }

    /** Reads what rocketmq-exporter reads of each broker: if one of the names is missing or is no number, it shows nothing of the broker. */
    static void exporter() throws Exception {
        for (String address : brokers()) {
            Map<String, String> shown = admin.fetchBrokerRuntimeStats(address).getTable();
            for (String name : EXPORTED_NUMBERS) {
                check(shown.containsKey(name) && Double.parseDouble(shown.get(name)) >= 0, name + " of " + shown.keySet());
            }
            for (String name : EXPORTED_RATES) {
                check(shown.get(name).split(" ").length == 3 && Double.parseDouble(shown.get(name).split(" ")[2]) >= 0, shown.get(name));
            }
            for (String range : RANGES) {
                String counts = shown.get("putMessageDistributeTime");
                check(counts.matches("(.* )?" + Pattern.quote(range) + ":[0-9]+( .*)?"), counts);
            }
            check(shown.get("commitLogDirCapacity").matches("Total : [0-9.]+ GiB, Free : [0-9.]+ GiB\\."), shown.get("commitLogDirCapacity"));
            check(shown.get("remainHowManyDataToFlush").matches("[0-9]+ B"), shown.get("remainHowManyDataToFlush"));
            for (String name : new String[] {"BROKER_PUT_NUMS", "BROKER_GET_NUMS"}) {
                check(admin.viewBrokerStatsData(address, name, "DefaultCluster").getStatsDay().getSum() >= QUEUE_MESSAGES, name);
            }
            check(address.endsWith(":" + admin.getBrokerConfig(address).getProperty("listenPort")), admin.getBrokerConfig(address));
        }
    }

    static void groups() throws Exception {
        for (String address : brokers()) {
            Set<String> listed = admin.getAllSubscriptionGroup(address, 5_000).getSubscriptionGroupTable().keySet();
            check(listed.contains(group), listed);
            check(admin.examineSubscriptionGroupConfig(address, group).isConsumeEnable(), group);
        }
        check(admin.examineConsumeStats(group).computeTotalDiff() == 0, admin.examineConsumeStats(group).getOffsetTable());
        check(admin.examineConsumeStats(group, topic).getOffsetTable().size() == 4, admin.examineConsumeStats(group, topic).getOffsetTable());
    }

    static void groupOfTopic() throws Exception {
        check(admin.queryTopicConsumeByWho(topic).getGroupList().contains(group), admin.queryTopicConsumeByWho(topic).getGroupList());
    }

    static void connection() throws Exception {
        var shown = admin.examineConsumerConnectionInfo(group);
        check(shown.getConnectionSet().size() == 1 && shown.getSubscriptionTable().containsKey(topic), shown.getConnectionSet());
        check(shown.computeMinVersion() > 0, shown.computeMinVersion());
        for (var client : shown.getConnectionSet()) {
            var running = admin.getConsumerRunningInfo(group, client.getClientId(), true);
            check(running.getMqTable().keySet().stream().anyMatch(queue -> queue.getTopic().equals(topic)), running.getMqTable());
            check(running.getJstack() != null && running.getJstack().contains("ConsumeMessage"), running.getJstack());
        }
    }

    static void producers() throws Exception {
        DefaultMQProducer producer = producer();
        var shown = admin.examineProducerConnectionInfo("pages-shop", topic);
        check(shown.getConnectionSet().size() == 1, shown.getConnectionSet());
        producer.shutdown();
    }

    static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("pages-shop");
        producer.setNamesrvAddr(nameserver);
        producer.setInstanceName("pages-producer");
        producer.start();
        producer.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer(topic);
        producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        return producer;
    }

    /** The page of messages asks each queue for the offsets of two times, and pulls between them. */
    static void messagesByTime() throws Exception {
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer(MixAll.TOOLS_CONSUMER_GROUP);
        puller.setNamesrvAddr(nameserver);
        puller.setInstanceName("pages-puller");
        puller.start();
        Set<String> found = new TreeSet<>();
        for (MessageQueue queue : puller.fetchSubscribeMessageQueues(topic)) {
            long begin = puller.searchOffset(queue, 0), end = puller.searchOffset(queue, System.currentTimeMillis() + 1_000);
            while (begin < end) {
                var pulled = puller.pull(queue, "*", begin, 32);
                if (pulled.getMsgFoundList() != null) {
                    pulled.getMsgFoundList().forEach(message -> found.add(message.getMsgId()));
                }
                begin = pulled.getNextBeginOffset();
            }
        }
        puller.shutdown();
        check(found.size() == messages, found.size());
    }

    static void messageById() throws Exception {
        DefaultMQProducer producer = producer();
        SendResult sent = producer.send(new Message(topic, "TagA", "order-1 order-2", "shown".getBytes(StandardCharsets.UTF_8)), 10_000);
        producer.shutdown();
        for (String key : new String[] {"order-1", "order-2"}) {
            var found = admin.queryMessage(topic, key, 64, 0, System.currentTimeMillis()).getMessageList();
            check(found.size() == 1 && found.get(0).getMsgId().equals(sent.getMsgId()), found);
        }
        check(admin.viewMessage(topic, sent.getMsgId()).getMsgId().equals(sent.getMsgId()), sent);
        MessageExt shown = admin.viewMessage(topic, sent.getOffsetMsgId());
        check(new String(shown.getBody(), StandardCharsets.UTF_8).equals("shown"), shown);
        for (long end = System.currentTimeMillis() + LIMIT_MS; ; Thread.sleep(200)) {
            var tracks = admin.messageTrackDetail(shown);
            if (tracks.stream().anyMatch(track -> track.getConsumerGroup().equals(group) && track.getTrackType().name().equals("CONSUMED"))) {
                break;
            }
            check(System.currentTimeMillis() < end, tracks);
        }
        for (var client : admin.examineConsumerConnectionInfo(group).getConnectionSet()) {
            var consumed = admin.consumeMessageDirectly(group, client.getClientId(), topic, sent.getOffsetMsgId());
            check(consumed.getConsumeResult().name().equals("CR_SUCCESS"), consumed);
        }
    }

    static void topicChanges() throws Exception {
        Set<String> addresses = new TreeSet<>(brokers());
        for (String address : addresses) {
            admin.createAndUpdateTopicConfig(address, new TopicConfig("pages-new", 3, 3, 6));
        }
        check(admin.examineTopicRouteInfo("pages-new").getQueueDatas().size() == 2, admin.examineTopicRouteInfo("pages-new"));
        admin.deleteTopicInBroker(addresses, "pages-new");
        check(!admin.fetchAllTopicList().getTopicList().contains("pages-new"), admin.fetchAllTopicList().getTopicList());
    }

    static void reset() throws Exception {
        var reset = admin.resetOffsetByTimestamp(topic, group, 0, true);
        check(reset.size() == 4 && reset.values().stream().allMatch(offset -> offset == 0), reset);
    }
}
