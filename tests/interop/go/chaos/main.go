// Works beside other clients, with RocketMQ's own Go client, until SIGTERM:
//
//	member NAMESERVER TOPIC GROUP NAME FILE TOPIC GROUP   a member of an ordered and of a concurrent group, as OrderedMember.java
//	producer NAMESERVER TOPIC FIRST KEYS PAUSE_MS BROKERS QUEUES   numbered events of several keys, as KeyedProducer.java
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
	"golang.org/x/sys/unix"
)

var stopped = make(chan os.Signal, 1)

func main() {
	rlog.SetLogLevel("error")
	signal.Notify(stopped, syscall.SIGTERM)
	uses := map[string]func(...string) error{"member": member, "producer": produce}
	if err := uses[os.Args[1]](os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func member(arguments ...string) error {
	file, err := os.OpenFile(arguments[4], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	// A shutdown frees the queues at once and lets calls run on, so the calls end before.
	var calls sync.RWMutex
	handled := func(message *primitive.MessageExt, begun int64) error {
		var event struct{ Order, Step int }
		if err := json.Unmarshal(message.Body, &event); err != nil {
			return err
		}
		queue := fmt.Sprintf("%s@%s:%d", message.Topic, message.Queue.BrokerName, message.Queue.QueueId)
		line, err := json.Marshal([]any{arguments[3], event.Order, event.Step, queue, "0", message.QueueOffset, begun, now()})
		if err == nil {
			_, err = file.Write(append(line, '\n'))
		}
		return err
	}
	ordered, err := start(arguments[0], arguments[1], arguments[2], arguments[3],
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			if !calls.TryRLock() {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			defer calls.RUnlock()
			for _, message := range messages {
				begun := now()
				time.Sleep(2 * time.Millisecond)
				if err := handled(message, begun); err != nil {
					return consumer.SuspendCurrentQueueAMoment, err
				}
			}
			return consumer.ConsumeSuccess, nil
		}, consumer.WithConsumerOrder(true), consumer.WithRebalanceLockInterval(5*time.Second))
	if err != nil {
		return err
	}
	concurrent, err := start(arguments[0], arguments[5], arguments[6], arguments[3],
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				if err := handled(message, now()); err != nil {
					return consumer.ConsumeRetryLater, err
				}
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	fmt.Println(`{"event": "worker.ready"}`)
	<-stopped
	calls.Lock()
	if err := ordered.Shutdown(); err != nil {
		return err
	}
	return concurrent.Shutdown()
}

func start(nameservers, topic, group, name string,
	listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error), more ...consumer.Option,
) (rocketmq.PushConsumer, error) {
	options := append([]consumer.Option{consumer.WithNameServer(strings.Split(nameservers, ";")), consumer.WithGroupName(group),
		consumer.WithInstance(name), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, more...)
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	if err := made.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, listener); err != nil {
		return nil, err
	}
	return made, made.Start()
}

// produce sends one event at a time and repeats a failed send, to a queue that the key alone decides.
func produce(arguments ...string) error {
	numbers := map[int]int{}
	for _, index := range []int{2, 3, 4, 6} {
		number, err := strconv.Atoi(arguments[index])
		if err != nil {
			return err
		}
		numbers[index] = number
	}
	topic, first, keys, pause := arguments[1], numbers[2], numbers[3], time.Duration(numbers[4])*time.Millisecond
	brokers := strings.Split(arguments[5], ",")
	sender, err := rocketmq.NewProducer(producer.WithNameServer(strings.Split(arguments[0], ";")), producer.WithGroupName("go-shop"),
		producer.WithRetry(0), producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	fmt.Println(`{"event": "worker.ready"}`)
	reported := map[string][2]int{}
	for step := 0; ; step++ {
		for key := 0; key < keys; key++ {
			message := primitive.NewMessage(topic, []byte(fmt.Sprintf(`{"order": %d, "step": %d}`, first+key, step)))
			message.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: brokers[key%len(brokers)], QueueId: key / len(brokers) % numbers[6]}
			acknowledged, name := step, strconv.Itoa(first+key)
			if send(sender, message) {
				acknowledged++
			}
			reported[name] = [2]int{acknowledged, step + 1}
			select {
			case <-stopped:
				line, err := json.Marshal(map[string]any{"event": "worker.finished", "reported": reported})
				fmt.Println(string(line))
				return err
			case <-time.After(pause):
			}
		}
	}
}

// send returns whether the message is stored, before SIGTERM.
func send(sender rocketmq.Producer, message *primitive.Message) bool {
	for {
		result, err := sender.SendSync(context.Background(), message)
		if err == nil && result.Status == primitive.SendOK {
			return true
		}
		fmt.Fprintln(os.Stderr, "again:", err)
		select {
		case number := <-stopped:
			stopped <- number
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// now returns the microseconds of the machine's monotonic clock.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano() / 1000
}
