// Uses RocketMQ's own Go client in each way that a program does: NAMESERVER USE…
// Prints a line "ok USE" or "failed USE: WHY" for each.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const limit = 60 * time.Second

var (
	nameservers primitive.NamesrvAddr
	sender      rocketmq.Producer
	background  = context.Background()
	instances   int
)

var uses = map[string]func(topic string) error{
	"sync": func(topic string) error { return send(topic, "TagA", "1") }, "async": async, "oneway": oneway, "batch": batch,
	"compressed": compressed, "push": push, "tags": tags, "retry": retry, "delay": delay, "ordered": ordered, "resume": resume,
	"pull": pull, "broadcast": broadcast, "transaction": transaction, "sql": sql,
}

func main() {
	rlog.SetLogLevel("fatal")
	nameservers = strings.Split(os.Args[1], ";")
	var err error
	sender, err = rocketmq.NewProducer(producer.WithNameServer(nameservers), producer.WithGroupName("go-shop"), producer.WithRetry(2),
		producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err == nil {
		err = sender.Start()
	}
	if err != nil {
		fmt.Println("failed start:", err)
		os.Exit(1)
	}
	for _, use := range os.Args[2:] {
		if err := attempt(use); err != nil {
			fmt.Printf("failed %s: %v\n", use, err)
		} else {
			fmt.Println("ok", use)
		}
	}
}

func attempt(use string) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	return uses[use]("go-" + use)
}

func async(topic string) error {
	done := make(chan error, 1)
	err := sender.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
		if err == nil && result.Status != primitive.SendOK {
			err = fmt.Errorf("%v", result)
		}
		done <- err
	}, message(topic, "TagA", "1"))
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("no response")
	}
}

func oneway(topic string) error {
	if err := send(topic, "TagA", "first"); err != nil {
		return err
	}
	if err := sender.SendOneWay(background, message(topic, "TagA", "1")); err != nil {
		return err
	}
	_, err := consumeUntil(topic, "*", "first", "1")
	return err
}

func batch(topic string) error {
	messages, bodies := []*primitive.Message{}, []string{}
	for number := 0; number < 10; number++ {
		bodies = append(bodies, fmt.Sprint(number))
		messages = append(messages, message(topic, "TagA", bodies[number]))
	}
	if _, err := sender.SendSync(background, messages...); err != nil {
		return err
	}
	_, err := consumeUntil(topic, "*", bodies...)
	return err
}

func compressed(topic string) error {
	body := strings.Repeat("x", 100_000)
	if err := send(topic, "TagA", body); err != nil {
		return err
	}
	_, err := consumeUntil(topic, "*", body)
	return err
}

func push(topic string) error {
	bodies := []string{}
	for number := 0; number < 100; number++ {
		bodies = append(bodies, fmt.Sprint(number))
		if err := send(topic, "TagA", bodies[number]); err != nil {
			return err
		}
	}
	_, err := consumeUntil(topic, "*", bodies...)
	return err
}

func tags(topic string) error {
	for _, tag := range []string{"TagA", "TagB", "TagC"} {
		if err := send(topic, tag, tag); err != nil {
			return err
		}
	}
	got, err := consumeUntil(topic, "TagA || TagC", "TagA", "TagC")
	if err == nil && got.has("TagB") {
		err = fmt.Errorf("TagB was delivered")
	}
	return err
}

func retry(topic string) error {
	if err := send(topic, "TagA", "1"); err != nil {
		return err
	}
	var got seen
	listener := func(listening context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		got.add(fmt.Sprint(messages[0].ReconsumeTimes))
		if concurrently, found := primitive.GetConcurrentlyCtx(listening); found {
			concurrently.DelayLevelWhenNextConsume = 1
		}
		if messages[0].ReconsumeTimes < 2 {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	return consume(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, listener, got.when("0", "1", "2"))
}

func delay(topic string) error {
	delayed := message(topic, "TagA", "1")
	delayed.WithDelayTimeLevel(1)
	if _, err := sender.SendSync(background, delayed); err != nil {
		return err
	}
	_, err := consumeUntil(topic, "*", "1")
	return err
}

func ordered(topic string) error {
	sent := []string{}
	for number := 0; number < 100; number++ {
		sent = append(sent, fmt.Sprint(number))
		keyed := message(topic, "TagA", sent[number])
		keyed.WithShardingKey("key")
		if _, err := sender.SendSync(background, keyed); err != nil {
			return err
		}
	}
	var got seen
	suspended := false
	listener := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range messages {
			if string(each.Body) == "50" && !suspended {
				suspended = true
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			got.add(string(each.Body))
		}
		return consumer.ConsumeSuccess, nil
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if err := consume(topic, selector, listener, got.when(sent...), consumer.WithConsumerOrder(true)); err != nil {
		return err
	}
	if in := strings.Join(got.list(), " "); in != strings.Join(sent, " ") || !suspended {
		return fmt.Errorf("got %s", in)
	}
	return nil
}

func resume(topic string) error {
	if err := send(topic, "TagA", "before"); err != nil {
		return err
	}
	if _, err := consumeUntil(topic, "*", "before"); err != nil {
		return err
	}
	if err := send(topic, "TagA", "after"); err != nil {
		return err
	}
	got, err := consumeUntil(topic, "*", "after")
	if err == nil && got.has("before") {
		err = fmt.Errorf("the committed offset is not used: %v", got.list())
	}
	return err
}

func pull(topic string) error {
	for _, body := range []string{"1", "2"} {
		if err := send(topic, "TagA", body); err != nil {
			return err
		}
	}
	puller, err := rocketmq.NewPullConsumer(options(topic)...)
	if err != nil {
		return err
	}
	if err := puller.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}); err != nil {
		return err
	}
	if err := puller.Start(); err != nil {
		return err
	}
	defer puller.Shutdown()
	var got seen
	return await(func() bool {
		polled, err := puller.Poll(background, time.Second)
		if err == nil {
			for _, each := range polled.GetMsgList() {
				got.add(string(each.Body))
			}
			puller.ACK(background, polled, consumer.ConsumeSuccess)
		}
		return got.when("1", "2")()
	})
}

func broadcast(topic string) error {
	if err := send(topic, "TagA", "old"); err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	members := [2]seen{}
	for number := range members {
		got := &members[number]
		member, err := rocketmq.NewPushConsumer(options(topic, consumer.WithConsumerModel(consumer.BroadCasting))...)
		if err != nil {
			return err
		}
		if err := member.Subscribe(topic, selector, got.listener()); err != nil {
			return err
		}
		if err := member.Start(); err != nil {
			return err
		}
		defer member.Shutdown()
	}
	return await(func() bool {
		return send(topic, "TagA", "new") == nil && members[0].has("new") && members[1].has("new")
	})
}

type asTheBodySays struct{ asked *seen }

func (asTheBodySays) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (producer asTheBodySays) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	producer.asked.add(string(message.Body) + " " + message.Topic)
	if string(message.Body) == "dropped" {
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

// A message is delivered if its local transaction commits, and no other one is, also if only the broker's question learns that.
func transaction(topic string) error {
	asked := new(seen)
	transactional, err := rocketmq.NewTransactionProducer(asTheBodySays{asked}, producer.WithNameServer(nameservers),
		producer.WithGroupName("go-transactions"), producer.WithInstanceName("transactions"))
	if err != nil {
		return err
	}
	if err := transactional.Start(); err != nil {
		return err
	}
	defer transactional.Shutdown()
	for _, body := range []string{"rollback", "commit", "dropped", "unknown"} {
		if _, err := transactional.SendMessageInTransaction(background, message(topic, "TagA", body)); err != nil {
			return err
		}
	}
	if err := await(asked.when("dropped "+topic, "unknown "+topic)); err != nil {
		return fmt.Errorf("asked about %v: %w", asked.list(), err)
	}
	got, err := consumeUntil(topic, "*", "commit", "unknown")
	if err == nil && (got.has("rollback") || got.has("dropped")) {
		return fmt.Errorf("what was rolled back is delivered")
	}
	return err
}

func sql(topic string) error {
	for tag, body := range map[string]string{"TagA": "1", "TagB": "2", "TagC": "3"} {
		if err := send(topic, tag, body); err != nil {
			return err
		}
	}
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "TAGS IN ('TagA', 'TagC') AND note IS NULL"}
	got := new(seen)
	err := consume(topic, selector, got.listener(), func() bool { return got.has("1") && got.has("3") })
	if err == nil && got.has("2") {
		err = fmt.Errorf("a message that does not meet the condition was consumed")
	}
	return err
}

func says(err error, words string) error {
	if err == nil || !strings.Contains(err.Error(), words) {
		return fmt.Errorf("expected %q: %v", words, err)
	}
	return nil
}

// seen has bodies in the order in which a listener got them.
type seen struct {
	mutex  sync.Mutex
	bodies []string
}

func (got *seen) add(body string) {
	got.mutex.Lock()
	defer got.mutex.Unlock()
	got.bodies = append(got.bodies, body)
}

func (got *seen) list() []string {
	got.mutex.Lock()
	defer got.mutex.Unlock()
	return append([]string{}, got.bodies...)
}

func (got *seen) has(body string) bool {
	for _, each := range got.list() {
		if each == body {
			return true
		}
	}
	return false
}

func (got *seen) when(bodies ...string) func() bool {
	return func() bool {
		sorted := got.list()
		sort.Strings(sorted)
		for _, body := range bodies {
			if at := sort.SearchStrings(sorted, body); at == len(sorted) || sorted[at] != body {
				return false
			}
		}
		return true
	}
}

func (got *seen) listener() func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	return func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range messages {
			got.add(string(each.Body))
		}
		return consumer.ConsumeSuccess, nil
	}
}

func consumeUntil(topic, expression string, bodies ...string) (*seen, error) {
	got := new(seen)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	return got, consume(topic, selector, got.listener(), got.when(bodies...))
}

func consume(topic string, selector consumer.MessageSelector,
	listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error), done func() bool, more ...consumer.Option,
) error {
	member, err := rocketmq.NewPushConsumer(options(topic, more...)...)
	if err != nil {
		return err
	}
	if err := member.Subscribe(topic, selector, listener); err != nil {
		return err
	}
	if err := member.Start(); err != nil {
		return err
	}
	defer member.Shutdown()
	return await(done)
}

// options gives each consumer a client id of its own: consumers with the same one share a client.
func options(topic string, more ...consumer.Option) []consumer.Option {
	instances++
	return append([]consumer.Option{consumer.WithNameServer(nameservers), consumer.WithGroupName("group-" + topic),
		consumer.WithInstance(fmt.Sprintf("member-%d", instances)), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, more...)
}

func send(topic, tag, body string) error {
	result, err := sender.SendSync(background, message(topic, tag, body))
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("%v", result)
	}
	return err
}

func message(topic, tag, body string) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(body))
	made.WithTag(tag)
	return made
}

func await(done func() bool) error {
	for end := time.Now().Add(limit); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %s", limit)
		}
	}
	return nil
}
