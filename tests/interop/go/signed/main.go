// Signs its requests, with RocketMQ's own Go client: NAMESERVER ACCESSKEY SECRET TOKEN USE…, where a use is send:TOPIC or
// consume:TOPIC:GROUP. Prints a line "ok USE" or "failed USE: WHY" for each.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	nameservers primitive.NamesrvAddr
	credentials primitive.Credentials
)

func main() {
	rlog.SetLogLevel("fatal")
	nameservers = strings.Split(os.Args[1], ";")
	credentials = primitive.Credentials{AccessKey: os.Args[2], SecretKey: os.Args[3], SecurityToken: os.Args[4]}
	for _, use := range os.Args[5:] {
		words := strings.Split(use, ":")
		var err error
		if words[0] == "send" {
			err = send(words[1])
		} else {
			err = consume(words[1], words[2])
		}
		if err != nil {
			fmt.Printf("failed %s: %s\n", use, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok", use)
		}
	}
}

func send(topic string) error {
	sender, err := rocketmq.NewProducer(producer.WithNameServer(nameservers), producer.WithGroupName("go-shop"),
		producer.WithCredentials(credentials))
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	result, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, []byte("body")))
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("%v", result)
	}
	return err
}

func consume(topic, group string) error {
	got := make(chan bool, 1_000)
	member, err := rocketmq.NewPushConsumer(consumer.WithNameServer(nameservers), consumer.WithGroupName(group),
		consumer.WithCredentials(credentials), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	listener := func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		got <- true
		return consumer.ConsumeSuccess, nil
	}
	if err := member.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, listener); err != nil {
		return err
	}
	if err := member.Start(); err != nil {
		return err
	}
	defer member.Shutdown()
	select {
	case <-got:
		return nil
	case <-time.After(60 * time.Second):
		return fmt.Errorf("nothing within 60 s")
	}
}
