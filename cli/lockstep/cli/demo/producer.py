"""One producer process of the demo: sends the events of its share of the orders, each order's events in sequence, by sharding key."""

import argparse
import asyncio
import json

from lockstep.cli.demo.order_events import STEPS, TOPIC
from lockstep.client import Message, Producer


async def send_order(producer: Producer, order: int, *, begin_s: float, step_s: float, sent: list[int]) -> None:
    """Send each event at its own time, and a late one at once, so that an outage does not synchronize all orders."""
    loop = asyncio.get_running_loop()
    for step, name in enumerate(STEPS):
        await asyncio.sleep(begin_s + step * step_s - loop.time())
        body = json.dumps({"order": order, "step": step, "event": name}).encode()
        await producer.send(Message(TOPIC, body, tags=name.split()[0], keys=[f"order-{order}"], sharding_key=str(order)))
        sent[0] += 1


async def main() -> None:
    arguments = parser().parse_args()
    orders = range(arguments.share, arguments.orders, arguments.of)
    step_s = arguments.seconds / 2 / len(STEPS)
    sent = [0]
    async with Producer(f"demo-shop-{arguments.share}", nameserver=arguments.nameserver) as producer, asyncio.TaskGroup() as group:
        now_s = asyncio.get_running_loop().time()
        for index, order in enumerate(orders):
            begin_s = now_s + arguments.seconds / 2 * index / len(orders)
            group.create_task(send_order(producer, order, begin_s=begin_s, step_s=step_s, sent=sent))
    print(json.dumps({"event": "producer.finished", "sent": sent[0]}), flush=True)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nameserver", required=True)
    options.add_argument("--orders", type=int, required=True)
    options.add_argument("--share", type=int, required=True, help="sends the orders SHARE, SHARE + OF, SHARE + 2 OF …")
    options.add_argument("--of", type=int, required=True)
    options.add_argument("--seconds", type=float, required=True, help="how long sending takes when nothing fails")
    return options


if __name__ == "__main__":
    asyncio.run(main())
