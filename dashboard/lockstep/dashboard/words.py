"""The words of the pages in Chinese, by their English text. The terms are those of RocketMQ's documentation in Chinese."""

CHINESE: dict[str, str] = {
    # every page
    "Skip to the content": "跳到正文",
    "Pages": "页面",
    "Cluster": "集群",
    "Topics": "主题",
    "Groups": "消费组",
    "Messages": "消息",
    "Doctor": "诊断",
    "Settings": "配置",
    "Changes": "变更",
    "Changes are allowed": "允许变更",
    "Pause": "暂停",
    "Continue": "继续",
    "Time in UTC": "UTC 时间",
    "Local time": "本地时间",
    "Colours": "颜色",
    "As the system": "跟随系统",
    "Light": "浅色",
    "Dark": "深色",
    "The dashboard does not answer: what you see is old.": "控制台没有响应：当前显示的是旧数据。",
    "The nameservers do not answer, the last figures stay: %(reason)s. <code>lockstep doctor</code> examines them.": (
        "NameServer 没有响应，显示的是最后一次的数据：%(reason)s。可用 <code>lockstep doctor</code> 检查。"
    ),
    "These figures are old: no look at the cluster has ended since %(time)s.": "数据已旧：自 %(time)s 起没有完成对集群的查询。",
    "As of %(time)s.": "截至 %(time)s。",
    "The first look at the cluster of %(nameservers)s has not ended yet.": "对 %(nameservers)s 所在集群的第一次查询尚未完成。",
    "No broker has registered. Start one: <code>lockstep broker --nameserver %(nameservers)s</code>": (
        "还没有 Broker 注册。启动一个：<code>lockstep broker --nameserver %(nameservers)s</code>"
    ),
    "%(broker)s does not answer, sums are without it: %(reason)s": "%(broker)s 没有响应，合计中不包含它：%(reason)s",
    "%(broker)s is not registered, sums are without it.": "%(broker)s 未注册，合计中不包含它。",
    "It has not answered since %(time)s.": "自 %(time)s 起没有响应。",
    "%(broker)s is older than this dashboard: no rates, no history. Sums are without it.": (
        "%(broker)s 的版本比本控制台旧：没有速率，没有历史。合计中不包含它。"
    ),
    "%(broker)s is older than this dashboard: no history of its queues.": "%(broker)s 的版本比本控制台旧：没有其队列的历史。",
    "The clock of %(broker)s is %(time)s ahead of the one of this dashboard; its events are shown by the latter.": (
        "%(broker)s 的时钟比本控制台快 %(time)s；其事件按本控制台的时钟显示。"
    ),
    "The clock of %(broker)s is %(time)s behind the one of this dashboard; its events are shown by the latter.": (
        "%(broker)s 的时钟比本控制台慢 %(time)s；其事件按本控制台的时钟显示。"
    ),
    "without %(brokers)s": "不包含 %(brokers)s",
    "Sums are without %(brokers)s.": "合计中不包含 %(brokers)s。",
    "%(broker)s is left out: %(reason)s": "不包含 %(broker)s：%(reason)s",
    "What follows is older.": "以下是较旧的数据。",
    "The brokers have not answered yet.": "Broker 尚未响应。",
    "Keys of the keyboard": "键盘快捷键",
    "<kbd>/</kbd> goes to the search, <kbd>p</kbd> pauses, <kbd>?</kbd> shows and hides this.": (
        "<kbd>/</kbd> 转到搜索，<kbd>p</kbd> 暂停刷新，<kbd>?</kbd> 显示或隐藏本说明。"
    ),
    "<kbd>g</kbd>, then <kbd>c</kbd> goes to the cluster, <kbd>t</kbd> to the topics, <kbd>g</kbd> to the groups, <kbd>m</kbd> to the "
    "messages, <kbd>s</kbd> to the settings, <kbd>d</kbd> to the doctor.": (
        "先按 <kbd>g</kbd>，再按 <kbd>c</kbd> 转到集群，<kbd>t</kbd> 转到主题，<kbd>g</kbd> 转到消费组，<kbd>m</kbd> 转到消息，"
        "<kbd>s</kbd> 转到配置，<kbd>d</kbd> 转到诊断。"
    ),
    "Not found": "未找到",
    "There is no such page": "没有这个页面",
    "The cluster": "集群",
    # lists
    "Name": "名称",
    "Sort by": "排序",
    "Show": "显示",
    "name": "名称",
    "rate": "速率",
    "behind": "堆积",
    "stored": "存储量",
    "moves": "移动次数",
    "page %(page)s of %(pages)s": "第 %(page)s 页，共 %(pages)s 页",
    "Pages of the list": "列表分页",
    "Previous": "上一页",
    "Next": "下一页",
    "yes": "是",
    "no": "否",
    "Remark": "说明",
    # the cluster
    "Stored": "存储",
    "Consumed": "消费",
    "Behind": "堆积",
    "messages per second, last hour": "条/秒，最近一小时",
    "messages, of all groups, last hour": "条，所有消费组，最近一小时",
    "Brokers": "Broker",
    "Broker": "Broker",
    "Address": "地址",
    "In/s": "写入/秒",
    "Out/s": "消费/秒",
    "Connections": "连接数",
    "Not synced": "未刷盘",
    "Log": "日志",
    "Disk": "磁盘",
    "Up": "运行时间",
    "Append, p99": "追加，p99",
    "Sends are refused when less than %(reserve)s are free.": "剩余空间少于 %(reserve)s 时拒绝发送。",
    "%(size)s free": "剩余 %(size)s",
    "Hand-overs": "队列移交",
    "queues granted per minute, last hour": "每分钟授予的队列数，最近一小时",
    "Examination": "检查",
    "%(problems)s problems, %(passed)s checks passed.": "%(problems)s 个问题，%(passed)s 项检查通过。",
    "Needs attention": "需要关注",
    "%(count)s more groups need attention:": "还有 %(count)s 个消费组需要关注：",
    "No group fails, and none that lags is without a member.": "没有消费失败的消费组，堆积的消费组都有成员。",
    # topics
    "Topic": "主题",
    "Topic %(topic)s": "主题 %(topic)s",
    "The topic": "主题",
    "%(count)s topics": "%(count)s 个主题",
    "topics of groups too": "包括消费组的主题",
    "Ten minutes": "十分钟",
    "Behind, at most": "最大堆积",
    "Queues with messages": "有消息的队列",
    "No topic with %(name)s in its name has messages.": "名称包含 %(name)s 的主题都没有消息。",
    "No topic has messages. <code>lockstep topic create NAME</code> makes one, <code>lockstep send NAME TEXT</code> stores a message.": (
        "没有主题有消息。<code>lockstep topic create NAME</code> 创建主题，<code>lockstep send NAME TEXT</code> 发送消息。"
    ),
    "Alter": "修改",
    "Delete": "删除",
    "No group has consumed this topic.": "没有消费组消费过该主题。",
    "Queues": "队列",
    "Queue": "队列",
    "All queues": "所有队列",
    "Messages that each queue stores, in the order of their numbers.": "每个队列存储的消息数，按队列编号排列。",
    "First offset": "最小位点",
    "Next offset": "最大位点",
    "Which queue has the sharding key": "分片键所在的队列",
    "%(key)s goes to queue %(queue)s of %(broker)s.": "%(key)s 发送到 %(broker)s 的队列 %(queue)s。",
    "Its messages": "它的消息",
    "No queue accepts messages.": "没有可写的队列。",
    "Layout": "队列布局",
    "Layout, version %(version)s": "队列布局，版本 %(version)s",
    "Queues to write": "可写队列",
    "Queues to read": "可读队列",
    "Since version": "自版本",
    "not registered": "未注册",
    "Page %(page)s of %(pages)s. There are %(count)s queues.": "第 %(page)s 页，共 %(pages)s 页，%(count)s 个队列。",
    # groups
    "Group": "消费组",
    "Group %(group)s": "消费组 %(group)s",
    "The group": "消费组",
    "All groups": "所有消费组",
    "%(count)s groups": "%(count)s 个消费组",
    "No broker knows this group.": "没有 Broker 知道这个消费组。",
    "No group with %(name)s in its name is known.": "没有名称包含 %(name)s 的消费组。",
    "No group is known. A group begins with its first consumer.": "还没有消费组。第一个消费者启动时消费组即存在。",
    "Kind": "类型",
    "ordered": "顺序",
    "concurrent": "并发",
    "broadcasting": "广播",
    "-": "–",
    "Members": "成员",
    "Queues held": "持有队列",
    "In time": "按时间",
    "Gone in": "预计消完",
    "Moves/min": "移动/分钟",
    "Why does it not get on?": "为什么没有进展？",
    "Reset": "重置位点",
    "messages": "条",
    "messages, gone in %(time)s": "条，预计 %(time)s 后消完",
    "Behind, in time": "堆积时间",
    "since the oldest message that waits was stored": "自最早的未消费消息存储以来",
    "not known": "未知",
    "%(count)s queues held": "持有 %(count)s 个队列",
    "Dead letters: %(count)s": "死信：%(count)s",
    "Parked keys: %(count)s": "搁置的键：%(count)s",
    "%(queue)s, offset %(offset)s, fails for %(time)s, %(attempts)s times:": (
        "%(queue)s，位点 %(offset)s，失败持续 %(time)s，共 %(attempts)s 次："
    ),
    "its consumer did not say why": "消费者没有说明原因",
    "Who held which queue": "队列由谁持有",
    "Minutes:": "分钟：",
    "Owners of the queues": "队列的持有者",
    "%(count)s queues, which moved less, have no lane here.": "另有 %(count)s 个移动较少的队列没有显示。",
    "Each member of a broadcasting group consumes every queue, and keeps its own progress.": (
        "广播消费组的每个成员消费所有队列，并各自保存进度。"
    ),
    "A concurrent group locks no queue.": "并发消费组不锁定队列。",
    "Nobody has held a queue since this dashboard began to look.": "自控制台开始观察以来没有队列被持有。",
    "Members of the group": "消费组的成员",
    "Member": "成员",
    "Connected": "已连接",
    "Last heard": "最近心跳",
    "Subscription": "订阅",
    "Missing at": "缺失于",
    "It has no member.": "没有成员。",
    "%(member)s was refused %(time)s ago: %(reason)s": "%(member)s 在 %(time)s 前被拒绝：%(reason)s",
    "Messages behind, of each queue, in the order of the topics and of their numbers.": "每个队列的堆积，按主题和队列编号排列。",
    "Owner": "持有者",
    "Committed": "已提交位点",
    "End": "最大位点",
    "Last commit": "最近提交",
    "Attempts": "尝试次数",
    "broker not reached": "无法访问 Broker",
    "Page %(page)s of %(pages)s, those furthest behind first. There are %(count)s queues.": (
        "第 %(page)s 页，共 %(pages)s 页，堆积最多的在前，%(count)s 个队列。"
    ),
    "%(count)s more queues fail.": "还有 %(count)s 个队列失败。",
    "Events": "事件",
    "Time": "时间",
    "Event": "事件",
    "Why": "原因",
    # why
    "Why %(group)s does not get on": "%(group)s 为什么没有进展",
    "Why group %(group)s does not get on": "消费组 %(group)s 为什么没有进展",
    "Because": "因为",
    "Also": "此外",
    "Next:": "下一步：",
    "The group has no queue.": "该消费组没有队列。",
    "%(count)s more queues were looked at, which move, or stand no longer than these.": (
        "另外检查了 %(count)s 个队列，它们有进展，或停滞时间不超过以上队列。"
    ),
    "The brokers and members have not answered yet.": "Broker 和成员尚未响应。",
    # the doctor
    "What <code>lockstep doctor</code> says on the machine of this dashboard.": (
        "在控制台所在机器上运行 <code>lockstep doctor</code> 的结果。"
    ),
    "Problems": "问题",
    "Check": "检查项",
    "Where": "位置",
    "Problem": "问题",
    "What to do": "处理方法",
    "No problem.": "没有问题。",
    "%(count)s checks passed.": "%(count)s 项检查通过。",
    "The examination has not ended yet.": "检查尚未完成。",
    # messages
    "Message": "消息",
    "Message %(id)s": "消息 %(id)s",
    "Messages of %(topic)s": "%(topic)s 的消息",
    "Find a message": "查找消息",
    "The id that <code>lockstep send</code> prints, or the one that its producer gave it. The messages of a topic are on the page of the "
    "topic; <code>lockstep message find</code> searches all topics for a key.": (
        "<code>lockstep send</code> 打印的 ID，或生产者给出的 ID。主题的消息在主题页面上；"
        "<code>lockstep message find</code> 在所有主题中按键查找。"
    ),
    "Facts": "属性",
    "Place": "位置",
    "%(broker)s, queue %(queue)s, offset %(offset)s": "%(broker)s，队列 %(queue)s，位点 %(offset)s",
    "Sent": "发送",
    "Offset": "位点",
    "Sharding key": "分区键",
    "Tag": "标签",
    "Keys": "键",
    "Id": "ID",
    ", from its producer %(id)s": "，生产者给出的 ID 为 %(id)s",
    "Deliveries before": "此前投递次数",
    "Body": "消息体",
    "%(size)s bytes": "%(size)s 字节",
    "; this dashboard shows no bodies (--no-bodies)": "；该控制台不显示消息体（--no-bodies）",
    ", which can't be read: %(reason)s": "，无法读取：%(reason)s",
    " that are no text": "，不是文本",
    "; what follows is the beginning, <code>lockstep message show</code> prints all": (
        "；以下是开头部分，<code>lockstep message show</code> 显示全部"
    ),
    "What became of it": "消费情况",
    "State": "状态",
    "Progress": "进度",
    "Meaning": "含义",
    "No group subscribes to its topic, or has read it.": "没有消费组订阅该主题，或读取过该消息。",
    "Text in the body": "消息体包含",
    "Since": "开始时间",
    "Until": "结束时间",
    "The search ended after 3 s: it looked at %(searched)s. Older ones may match; <code>lockstep message find</code> has no such limit.": (
        "查找在 3 秒后结束，查看了 %(searched)s。更早的消息可能匹配；<code>lockstep message find</code> 没有这个限制。"
    ),
    "Older": "更早",
    "No message was found so far.": "目前没有找到消息。",
    "No message matches.": "没有匹配的消息。",
    # the live tail
    "Live tail": "实时查看",
    "Live tail of %(topic)s": "实时查看 %(topic)s",
    "The nameservers do not answer, the brokers are read at their last addresses: %(reason)s": (
        "NameServer 没有响应，按 Broker 最后的地址读取：%(reason)s"
    ),
    "The nameservers do not answer: %(reason)s": "NameServer 没有响应：%(reason)s",
    "There is no topic %(topic)s: <code>lockstep topic create NAME</code> makes one.": (
        "没有主题 %(topic)s：<code>lockstep topic create NAME</code> 创建主题。"
    ),
    "The topic was deleted.": "主题已被删除。",
    "The topic was not found yet.": "尚未找到该主题。",
    "Shown are messages stored after %(time)s, the newest first, at most %(count)s.": (
        "显示 %(time)s 之后存储的消息，最新的在前，最多 %(count)s 条。"
    ),
    "Messages passed over, because more arrive than are shown: %(count)s": "到达的消息多于可显示的数量，略过的消息：%(count)s",
    "Messages that were read and did not match: %(count)s": "已读取但不匹配的消息：%(count)s",
    "Messages that could not be shown, as the log has no record there: %(count)s": "日志中没有记录、无法显示的消息：%(count)s",
    "No message that matches has come since then.": "此后没有匹配的消息到达。",
    "No message has come since then.": "此后没有消息到达。",
    # dead letters and parked keys
    "Dead letters": "死信",
    "Dead letters of %(group)s": "%(group)s 的死信",
    "Stored: %(stored)s, of which %(pending)s were not replayed.": "存储：%(stored)s，其中 %(pending)s 条尚未重投。",
    "Shown are the newest of each broker.": "显示每个 Broker 上最新的死信。",
    "Given up at": "放弃时间",
    "Replayed": "已重投",
    "Reason": "原因",
    "When the cause is removed, this command sends them again:": "原因排除后，用以下命令重投：",
    "The group has no dead letters: it has given up on no message, or retention has removed them.": (
        "该消费组没有死信：没有放弃过消息，或死信已过保留期。"
    ),
    "Parked keys": "搁置的键",
    "Parked keys of %(group)s": "%(group)s 搁置的键",
    "Key": "键",
    "Waiting": "等待中",
    "Without counting": "不统计",
    "Count what waits": "统计等待的消息",
    "Counted at %(time)s; 37+ means that there may be more than 37. This page does not refresh itself.": (
        "统计于 %(time)s；37+ 表示可能多于 37 条。本页不自动刷新。"
    ),
    "At least %(count)s more keys: <code>lockstep park ls</code> prints up to 10,000 of each broker.": (
        "至少还有 %(count)s 个键：<code>lockstep park ls</code> 最多显示每个 Broker 的 10,000 个。"
    ),
    "When the cause is removed, this command lets them be consumed again, with <code>--all</code> every key:": (
        "原因排除后，用以下命令重新消费，加 <code>--all</code> 则重新消费所有键："
    ),
    "This command gives up what waits, which makes dead letters of it:": "以下命令放弃等待的消息，使其成为死信：",
    "The group has parked no key. An ordered group parks keys if its consumers are started with": (
        "该消费组没有搁置的键。顺序消费组在消费者以此方式启动时搁置键："
    ),
    "Counting has not ended yet: look again": "统计尚未完成：请再次查看",
    # settings
    "Setting": "配置项",
    "nameserver %(address)s": "NameServer %(address)s",
    "Settings that differ between brokers: %(names)s": "各 Broker 不一致的配置项：%(names)s",
    "brokers differ": "Broker 之间不一致",
    "Under each value is where it comes from. <code>lockstep broker config get SETTING</code> says whether it can be changed while the "
    "broker runs, <code>lockstep broker config set SETTING=VALUE --all</code> changes it at all brokers until they end.": (
        "每个值下面是它的来源。<code>lockstep broker config get SETTING</code> 说明运行时能否修改，"
        "<code>lockstep broker config set SETTING=VALUE --all</code> 在所有 Broker 上修改，直到它们停止。"
    ),
    "No setting has %(name)s in its name.": "没有名称包含 %(name)s 的配置项。",
    "No server has responded.": "没有服务器响应。",
    "The servers have not answered yet.": "服务器尚未响应。",
    # changes
    "All changes": "所有变更",
    "Create a topic": "创建主题",
    "Alter a topic": "修改主题",
    "Delete a topic": "删除主题",
    "Send a message": "发送消息",
    "Reset the offsets of a group": "重置消费位点",
    "Change the settings of a group": "修改消费组配置",
    "Replay parked keys": "重新消费搁置的键",
    "Drop parked keys": "放弃搁置的键",
    "Replay dead letters": "重投死信",
    "Replays of dead letters": "死信重投",
    "Begun": "开始",
    "To": "目标",
    "Found": "找到",
    "Stop": "停止",
    "None since this dashboard was started.": "控制台启动以来没有。",
    "Queues on each broker": "每个 Broker 的队列数",
    "May consume": "允许消费",
    "Subscription policy": "订阅策略",
    "Forget parked keys": "忘记搁置的键",
    "Messages per second": "每秒条数",
    "Which": "范围",
    "not replayed yet": "尚未重投",
    "all": "全部",
    "only this one; empty for all": "仅此一个；为空表示全部",
    "only this one, as in broker-a:3; empty for all": "仅此一个，如 broker-a:3；为空表示全部",
    "its messages stay in order": "同一键的消息保持顺序",
    "separated by spaces": "以空格分隔",
    "empty: as it is": "为空：不变",
    "beginning, end, an offset, a time (2026-11-21T15:00:00Z), or a duration ago (90s, 30m, 2h, 7d)": (
        "beginning（最早）、end（最新）、位点、时间（2026-11-21T15:00:00Z）或多久之前（90s、30m、2h、7d）"
    ),
    "retry: only this group gets them; topic: all groups of their topics; empty: as the group reads": (
        "retry：仅该消费组收到；topic：原主题的所有消费组收到；为空：按消费组的读取方式"
    ),
    "Show what it does": "查看将要做什么",
    "What it does": "将要做什么",
    "What changes": "变更内容",
    "%(count)s more rows.": "还有 %(count)s 行。",
    "This command does the same:": "以下命令效果相同：",
    "Type <code>%(name)s</code> to confirm": "输入 <code>%(name)s</code> 以确认",
    "Back to the form": "返回表单",
    "Done": "完成",
    "Again": "再次",
    "Old offset": "原位点",
    "New offset": "新位点",
    "End offset": "最大位点",
    "Change": "变化",
}
