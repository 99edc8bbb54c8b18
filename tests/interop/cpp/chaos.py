"""A member and a producer beside other clients, with RocketMQ's C++ client: NAMESERVER NAME FOLDER KEY TOPIC GROUP.

It sends numbered events of one key, in any queues, until SIGUSR2 or SIGTERM. It appends a line for each message that it has handled to
NAME.handled, as worker_consumer.py does (the client does not tell the broker), and one for each acknowledged send to NAME.acks, as
worker_producer.py does.
"""

import json
import os
import signal
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer, SendStatus

PAUSE_S = 0.1
NAMESERVERS, NAME, FOLDER, KEY, TOPIC, GROUP = sys.argv[1:]
stopped, sent = threading.Event(), threading.Event()


def now_us() -> int:
    return time.monotonic_ns() // 1000


def opened(ending: str) -> int:
    return os.open(f"{FOLDER}/{NAME}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def append(file: int, *values: object) -> None:
    os.write(file, (json.dumps(values) + "\n").encode())


def consumer() -> PushConsumer:
    handled = opened("handled")

    def listen(received: object) -> None:
        begun_us, event = now_us(), json.loads(received.body)  # type: ignore[attr-defined]
        queue, offset = f"{TOPIC}@:{received.queue_id}", received.queue_offset  # type: ignore[attr-defined]
        append(handled, NAME, event["order"], event["step"], queue, "0", offset, begun_us, now_us())

    made = PushConsumer(GROUP)
    made.set_namesrv_addr(NAMESERVERS)
    made.set_instance_name(NAME)
    made.subscribe(TOPIC, listen)
    made.start()
    return made


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.signal(signal.SIGUSR2, lambda *_: sent.set())
    member = consumer()
    producer = Producer(f"{NAME}-shop", timeout=3_000)
    producer.set_namesrv_addr(NAMESERVERS)
    producer.start()
    print(json.dumps({"event": "worker.ready"}), flush=True)
    acks, step = opened("acks"), 0
    while not stopped.wait(PAUSE_S) and not sent.is_set():
        message = Message(TOPIC)
        message.set_body(json.dumps({"order": int(KEY), "step": step}))
        try:
            result = producer.send_sync(message)
        except Exception as error:
            print("again:", error, file=sys.stderr, flush=True)
            continue
        if result.status == SendStatus.OK:
            append(acks, int(KEY), step, TOPIC, result.offset)
            step += 1
    print(json.dumps({"event": "worker.sent"}), flush=True)
    stopped.wait()
    member.shutdown()
    os._exit(0)


main()
