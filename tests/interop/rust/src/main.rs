//! Uses a Rust client of RocketMQ's remoting protocol in each way that a program does: NAMESERVER USE…
//! Prints a line "ok USE" or "failed USE: WHY" for each.

#![recursion_limit = "512"]

use std::any::Any;
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq_client_rust::{
    ClientConfig, ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultLitePullConsumer, DefaultMQProducer, DefaultMQPushConsumer, LocalTransactionState,
    MQPushConsumer, MessageListenerConcurrently, MessageListenerOrderly, MessageSelector, TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use rocketmq_runtime::RuntimeOwner;

type Outcome = Result<(), Box<dyn Error>>;

const LIMIT: Duration = Duration::from_secs(90);
const TIMEOUT_MS: u64 = 10_000;

fn main() -> Outcome {
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let runtime = ClientRuntime::try_new(owner.root_context().component("trial"), ClientRuntimeConfig::default(), telemetry.handle())?;
    owner.block_on(Box::pin(run(runtime)))?;
    std::process::exit(0); // without the shutdown of the client's own tasks, which is not what is tried
}

async fn run(runtime: Arc<ClientRuntime>) -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let nameservers = arguments.next().expect("a nameserver");
    let config = ClientConfig { instance_name: "producer".into(), ..config(&nameservers) };
    let mut producer = DefaultMQProducer::builder(runtime.clone()).client_config(config).producer_group("rust-shop").build();
    producer.start().await?;
    let trial = Trial { runtime, nameservers, producer, instances: AtomicU32::new(0) };
    for name in arguments {
        match Box::pin(trial.attempt(&name)).await {
            Ok(()) => println!("ok {name}"),
            Err(error) => println!("failed {name}: {error}"),
        }
    }
    Ok(())
}

fn config(nameservers: &str) -> ClientConfig {
    ClientConfig { namesrv_addr: Some(nameservers.into()), vip_channel_enabled: false, ..Default::default() }
}

struct Trial {
    runtime: Arc<ClientRuntime>,
    nameservers: String,
    producer: DefaultMQProducer,
    instances: AtomicU32,
}

impl Trial {
    async fn attempt(&self, name: &str) -> Outcome {
        let topic = format!("rust-{name}");
        match name {
            "sync" => self.send(&topic, "TagA", "1").await,
            "async" => self.asynchronous(&topic).await,
            "oneway" => self.oneway(&topic).await,
            "batch" => self.batch(&topic).await,
            "compressed" => self.compressed(&topic).await,
            "push" => self.push(&topic).await,
            "tags" => self.tags(&topic).await,
            "retry" => self.retry(&topic).await,
            "delay" => self.delay(&topic).await,
            "ordered" => self.ordered(&topic).await,
            "resume" => self.resume(&topic).await,
            "pull" => self.pull(&topic).await,
            "broadcast" => self.broadcast(&topic).await,
            "transaction" => self.transaction(&topic).await,
            "sql" => self.sql(&topic).await,
            _ => Err(format!("no use is named {name}").into()),
        }
    }

    async fn asynchronous(&self, topic: &str) -> Outcome {
        let outcome: Arc<Mutex<Option<String>>> = Arc::default();
        let told = outcome.clone();
        self.producer
            .send_with_callback(message(topic, "TagA", "1"), move |sent, error| {
                *told.lock().unwrap() = Some(match (sent, error) {
                    (Some(_), None) => String::new(),
                    other => format!("{other:?}"),
                });
            })
            .await?;
        until(|| outcome.lock().unwrap().is_some()).await?;
        let why = outcome.lock().unwrap().clone().unwrap_or_default();
        if why.is_empty() {
            Ok(())
        } else {
            Err(why.into())
        }
    }

    async fn oneway(&self, topic: &str) -> Outcome {
        self.send(topic, "TagA", "first").await?;
        self.producer.send_oneway(message(topic, "TagA", "1")).await?;
        self.consume_until(topic, "*", &["first", "1"]).await.map(drop)
    }

    async fn batch(&self, topic: &str) -> Outcome {
        self.send(topic, "TagA", "first").await?;
        let bodies: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let messages = bodies.iter().map(|body| message(topic, "TagA", body)).collect();
        self.producer.send_batch_with_timeout(messages, TIMEOUT_MS).await?;
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        self.consume_until(topic, "*", &bodies).await.map(drop)
    }

    async fn compressed(&self, topic: &str) -> Outcome {
        let body = "x".repeat(100_000);
        self.send(topic, "TagA", &body).await?;
        self.consume_until(topic, "*", &[&body]).await.map(drop)
    }

    async fn push(&self, topic: &str) -> Outcome {
        let bodies: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        for body in &bodies {
            self.send(topic, "TagA", body).await?;
        }
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        self.consume_until(topic, "*", &bodies).await.map(drop)
    }

    async fn tags(&self, topic: &str) -> Outcome {
        for tag in ["TagA", "TagB", "TagC"] {
            self.send(topic, tag, tag).await?;
        }
        let got = self.consume_until(topic, "TagA || TagC", &["TagA", "TagC"]).await?;
        got.without("TagB")
    }

    async fn sql(&self, topic: &str) -> Outcome {
        for (tag, body) in [("TagA", "1"), ("TagB", "2"), ("TagC", "3")] {
            self.send(topic, tag, body).await?;
        }
        let got = Seen::default();
        let mut member = self.member(topic, MessageModel::Clustering);
        let condition = MessageSelector::by_sql("TAGS IN ('TagA', 'TagC') AND note IS NULL");
        member.subscribe_with_selector(topic, Some(condition)).await?;
        consume(&mut member, got.clone(), || got.has_all(&["1", "3"])).await?;
        got.without("2")
    }

    async fn retry(&self, topic: &str) -> Outcome {
        self.send(topic, "TagA", "1").await?;
        let got = Seen::default();
        let mut member = self.member(topic, MessageModel::Clustering);
        member.subscribe(topic, "*").await?;
        consume(&mut member, FailsOnce(got.clone()), || got.has_all(&["0", "1"])).await
    }

    async fn delay(&self, topic: &str) -> Outcome {
        let mut delayed = message(topic, "TagA", "1");
        delayed.set_delay_time_level(1);
        self.producer.send_with_timeout(delayed, TIMEOUT_MS).await?;
        self.consume_until(topic, "*", &["1"]).await.map(drop)
    }

    async fn ordered(&self, topic: &str) -> Outcome {
        let sent: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        for body in &sent {
            let selector = |queues: &[_], _: &Message, at: &usize| queues.get(*at).cloned();
            self.producer.send_with_selector_timeout(message(topic, "TagA", body), selector, 0_usize, TIMEOUT_MS).await?;
        }
        let got = Seen::default();
        let suspended = Arc::new(AtomicBool::new(false));
        let mut member = self.member(topic, MessageModel::Clustering);
        member.subscribe(topic, "*").await?;
        member.register_message_listener_orderly(SuspendsOnce { got: got.clone(), suspended: suspended.clone() });
        member.start().await?;
        let bodies: Vec<&str> = sent.iter().map(String::as_str).collect();
        let outcome = until(|| got.has_all(&bodies)).await;
        member.shutdown().await;
        outcome?;
        if got.list() != sent || !suspended.load(Ordering::SeqCst) {
            return Err(format!("got {:?}", got.list()).into());
        }
        Ok(())
    }

    async fn resume(&self, topic: &str) -> Outcome {
        self.send(topic, "TagA", "before").await?;
        self.consume_until(topic, "*", &["before"]).await?;
        self.send(topic, "TagA", "after").await?;
        self.consume_until(topic, "*", &["after"]).await?.without("before")
    }

    async fn pull(&self, topic: &str) -> Outcome {
        self.send(topic, "TagA", "1").await?;
        self.send(topic, "TagA", "2").await?;
        let puller = DefaultLitePullConsumer::builder(self.runtime.clone())
            .name_server_addr(self.nameservers.clone())
            .instance_name(self.instance())
            .consumer_group(format!("group-{topic}"))
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .build()?;
        puller.subscribe(topic).await?;
        puller.start().await?;
        let mut got = BTreeSet::new();
        let end = Instant::now() + LIMIT;
        while got.len() < 2 && Instant::now() < end {
            got.extend(puller.poll_with_timeout(1_000).await.iter().map(body));
        }
        puller.shutdown().await;
        if got.into_iter().eq(["1", "2"]) {
            Ok(())
        } else {
            Err(format!("not within {LIMIT:?}").into())
        }
    }

    async fn broadcast(&self, topic: &str) -> Outcome {
        self.send(topic, "TagA", "old").await?;
        let members = [Seen::default(), Seen::default()];
        let mut running = Vec::new();
        for got in &members {
            let mut member = self.member(topic, MessageModel::Broadcasting);
            member.subscribe(topic, "*").await?;
            member.register_message_listener_concurrently(got.clone());
            member.start().await?;
            running.push(member);
        }
        let end = Instant::now() + LIMIT;
        while !members.iter().all(|got| got.has_all(&["new"])) && Instant::now() < end {
            self.send(topic, "TagA", "new").await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for member in &mut running {
            member.shutdown().await;
        }
        if members.iter().all(|got| got.has_all(&["new"])) {
            Ok(())
        } else {
            Err("not all members got it".into())
        }
    }

    /// A message is delivered if its local transaction commits, and no other one is, also if only the broker's question learns that.
    async fn transaction(&self, topic: &str) -> Outcome {
        let asked = Seen::default();
        let mut producer = TransactionMQProducer::builder(self.runtime.clone())
            .name_server_addr(self.nameservers.clone())
            .producer_group("rust-transactions")
            .transaction_listener(AsTheBodySays { asked: asked.clone() })
            .build();
        producer.start().await?;
        for body in ["rollback", "commit", "dropped", "unknown"] {
            producer.send_message_in_transaction::<(), _>(message(topic, "TagA", body), None).await?;
        }
        until(|| asked.has_all(&["dropped", "unknown"])).await?;
        let got = self.consume_until(topic, "*", &["commit", "unknown"]).await;
        producer.shutdown().await;
        let got = got?;
        got.without("rollback")?;
        got.without("dropped")
    }

    async fn consume_until(&self, topic: &str, expression: &str, bodies: &[&str]) -> Result<Seen, Box<dyn Error>> {
        let got = Seen::default();
        let mut member = self.member(topic, MessageModel::Clustering);
        member.subscribe(topic, expression).await?;
        consume(&mut member, got.clone(), || got.has_all(bodies)).await?;
        Ok(got)
    }

    fn member(&self, topic: &str, model: MessageModel) -> DefaultMQPushConsumer {
        let config = ClientConfig { instance_name: self.instance().into(), ..config(&self.nameservers) };
        DefaultMQPushConsumer::builder(self.runtime.clone())
            .client_config(config)
            .consumer_group(format!("group-{topic}"))
            .message_model(model)
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .build()
    }

    /// Returns a new instance's name: consumers with the same one share a client.
    fn instance(&self) -> String {
        format!("member-{}", self.instances.fetch_add(1, Ordering::SeqCst))
    }

    async fn send(&self, topic: &str, tag: &str, body: &str) -> Outcome {
        match self.producer.send_with_timeout(message(topic, tag, body), TIMEOUT_MS).await? {
            Some(_) => Ok(()),
            None => Err("no result of the send".into()),
        }
    }
}

async fn consume(
    member: &mut DefaultMQPushConsumer,
    listener: impl MessageListenerConcurrently + Send + Sync + 'static,
    done: impl Fn() -> bool,
) -> Outcome {
    member.register_message_listener_concurrently(listener);
    member.start().await?;
    let outcome = until(done).await;
    member.shutdown().await;
    outcome
}

async fn until(done: impl Fn() -> bool) -> Outcome {
    let end = Instant::now() + LIMIT;
    while !done() {
        if Instant::now() > end {
            return Err(format!("not within {LIMIT:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn message(topic: &str, tag: &str, body: &str) -> Message {
    Message::builder().topic(topic).tags(tag).body_slice(body.as_bytes()).build_unchecked()
}

fn body(message: impl std::borrow::Borrow<MessageExt>) -> String {
    String::from_utf8_lossy(&message.borrow().body().unwrap_or_default()).into_owned()
}

/// The bodies in the order in which a listener got them.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn add(&self, body: String) {
        self.0.lock().unwrap().push(body);
    }

    fn list(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn has_all(&self, bodies: &[&str]) -> bool {
        let got: BTreeSet<String> = self.list().into_iter().collect();
        bodies.iter().all(|body| got.contains(*body))
    }

    fn without(&self, body: &str) -> Outcome {
        if self.has_all(&[body]) {
            Err(format!("{body} was delivered").into())
        } else {
            Ok(())
        }
    }
}

impl MessageListenerConcurrently for Seen {
    fn consume_message(&self, messages: &[&MessageExt], _: &ConsumeConcurrentlyContext) -> ClientResult<ConsumeConcurrentlyStatus> {
        messages.iter().for_each(|message| self.add(body(*message)));
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

/// Fails at first, and keeps how often the message was consumed before.
struct FailsOnce(Seen);

impl MessageListenerConcurrently for FailsOnce {
    fn consume_message(&self, messages: &[&MessageExt], _: &ConsumeConcurrentlyContext) -> ClientResult<ConsumeConcurrentlyStatus> {
        let times = messages[0].reconsume_times();
        self.0.add(times.to_string());
        Ok(if times == 0 { ConsumeConcurrentlyStatus::ReconsumeLater } else { ConsumeConcurrentlyStatus::ConsumeSuccess })
    }
}

struct SuspendsOnce {
    got: Seen,
    suspended: Arc<AtomicBool>,
}

impl MessageListenerOrderly for SuspendsOnce {
    fn consume_message(&self, messages: &[&MessageExt], _: &mut ConsumeOrderlyContext) -> ClientResult<ConsumeOrderlyStatus> {
        for message in messages {
            if body(*message) == "50" && !self.suspended.swap(true, Ordering::SeqCst) {
                return Ok(ConsumeOrderlyStatus::SuspendCurrentQueueAMoment);
            }
            self.got.add(body(*message));
        }
        Ok(ConsumeOrderlyStatus::Success)
    }
}

struct AsTheBodySays {
    asked: Seen,
}

impl TransactionListener for AsTheBodySays {
    fn execute_local_transaction(&self, message: &dyn MessageTrait, _: Option<&(dyn Any + Send + Sync)>) -> LocalTransactionState {
        match message.get_body().map(|body| body.to_vec()).as_deref() {
            Some(b"commit") => LocalTransactionState::CommitMessage,
            Some(b"rollback") => LocalTransactionState::RollbackMessage,
            _ => LocalTransactionState::Unknown,
        }
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        let text = body(message);
        self.asked.add(text.clone());
        if text == "dropped" {
            return LocalTransactionState::RollbackMessage;
        }
        LocalTransactionState::CommitMessage
    }
}
