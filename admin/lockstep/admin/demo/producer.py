"""One producer process of the demo: tells its share of the orders' stories, each order's events one after the other, by sharding key."""

import argparse
import asyncio
import json

from lockstep.admin.demo.story import STEPS, TOPIC
from lockstep.client import Message, Producer


async def tell_order(producer: Producer, order: int, *, start_s: float, step_s: float, sent: list[int]) -> None:
    await asyncio.sleep(start_s)
    for step, name in enumerate(STEPS):
        body = json.dumps({"order": order, "step": step, "event": name}).encode()
        await producer.send(Message(TOPIC, body, tags=name.split()[0], keys=[f"order-{order}"]), sharding_key=str(order))
        sent[0] += 1
        await asyncio.sleep(step_s)


async def main() -> None:
    arguments = parser().parse_args()
    orders = range(arguments.share, arguments.orders, arguments.of)
    step_s = arguments.seconds / 2 / len(STEPS)
    sent = [0]
    async with Producer(f"demo-shop-{arguments.share}", nameserver=arguments.nameserver) as producer, asyncio.TaskGroup() as group:
        for index, order in enumerate(orders):
            start_s = arguments.seconds / 2 * index / len(orders)
            group.create_task(tell_order(producer, order, start_s=start_s, step_s=step_s, sent=sent))
    print(json.dumps({"event": "producer.finished", "sent": sent[0]}), flush=True)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nameserver", required=True)
    options.add_argument("--orders", type=int, required=True)
    options.add_argument("--share", type=int, required=True, help="tells the orders SHARE, SHARE + OF, SHARE + 2 OF …")
    options.add_argument("--of", type=int, required=True)
    options.add_argument("--seconds", type=float, required=True, help="how long the telling takes when nothing fails")
    return options


if __name__ == "__main__":
    asyncio.run(main())
