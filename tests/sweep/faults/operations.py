"""Operations at bad times: resets, groups that begin, topics deleted and created again, copied stores, strange layouts."""

from lockstep.operations.targets import Target
from sweep.late_groups import start_next_group
from sweep.operators import (
    OPERATOR,
    delete_main,
    first_sends_main,
    purge_main,
    recreate_main,
    reset_main,
    strange_layouts_main,
    take_name_main,
)
from sweep.services import make_broker
from sweep.settings import MAILING, READERS, RETURNS, TOPIC
from sweep.storm import Storm


def reset_progress(storm: Storm) -> None:
    """Reset a running group, or one that is stopped meanwhile: to the beginning, the end, an offset or a time."""
    random, universe = storm.random, storm.universe
    setting = universe.setting
    groups = [*setting.groups, *([MAILING] if setting.concurrent else []), *([READERS] if setting.readers else [])]
    group = random.choice(groups)
    word = random.choice(["beginning", "end", "offset", "offset", "time"])
    target = Target(word, random.randrange(1_001 if word == "offset" else 60_000))
    if random.random() < 0.3:
        storm.record_fault("reset of a stopped group", group, target)
        for address in universe.consumers:
            universe.stop(address)
            storm.call_later(random.choice([4, 6]), storm.start_when_ended, address)
        storm.call_later(random.choice([1, 3]), _reset, storm, group, target)
    else:
        storm.record_fault("reset progress", group, target)
        _reset(storm, group, target)


def _reset(storm: Storm, group: str, target: Target) -> None:
    """Run the reset; sometimes the operator's machine dies after the response of a broker, or before."""
    storm.universe.launch(OPERATOR, "admin", reset_main(storm.universe, group, TOPIC, target))
    if storm.random.random() < 0.4:
        storm.call_later(storm.random.uniform(0.01, 0.05), _cut_operator, storm)


def reset_at_a_restart(storm: Storm) -> None:
    """Let a member join, so that the others drain queues for it, reset all progress, and restart the brokers before the holders know.
    The links to the holders are slow: a holder receives STALE later than the broker could grant its queue to the new member.
    """
    universe, random = storm.universe, storm.random
    address = storm.consumer()
    others = [other for other in universe.consumers if other != address]
    storm.record_fault("reset at a restart", address)
    universe.stop(address)
    back_s = random.choice([3, 6])
    storm.call_later(back_s, storm.start_when_ended, address)
    reset_s = back_s + random.uniform(0.3, 2.5)
    target = Target("offset", random.randrange(1_001))
    for group in universe.setting.groups:
        storm.call_later(reset_s, universe.launch, OPERATOR, "admin", reset_main(universe, group, TOPIC, target))
    for broker in universe.brokers.values():
        storm.call_later(reset_s, _slow, storm, others, broker, random.choice([0.1, 0.2]))
        storm.call_later(reset_s + random.choice([0.03, 0.1]), storm.take_down, broker, 0.05)


def _slow(storm: Storm, addresses: list[str], broker: str, more_s: float) -> None:
    slow = storm.universe.loop.network.slow
    pairs = [pair for address in addresses for pair in ((address, broker), (broker, address))]
    for pair in pairs:
        slow[pair] = more_s
        storm.call_later(4, slow.pop, pair, None)


def purge_topic(storm: Storm) -> None:
    """Remove the first messages of queues, also those that groups have not consumed; often a broker dies then or soon after."""
    universe, random = storm.universe, storm.random
    shares = [random.choice([0, 1_000, random.randrange(1_001)]) for _ in range(2)]
    storm.record_fault("purge topic", str(shares))
    universe.launch(OPERATOR, "admin", purge_main(universe, TOPIC, shares))
    if random.random() < 0.4:
        storm.call_later(random.choice([0.01, 0.03, 0.1, 0.5]), storm.take_down, storm.broker()[1], random.choice([0.05, 0.5]))


def begin_group(storm: Storm) -> None:
    """Let an unknown group begin; often a broker dies at the same time."""
    universe, random = storm.universe, storm.random
    if start_next_group(universe) is not None and random.random() < 0.5:
        _, address = storm.broker()
        storm.call_later(random.uniform(0.0, 1.0), storm.take_down, address, random.choice([0.05, 0.5, 3]))


def delete_topic(storm: Storm) -> None:
    """Delete the second topic while it is used, and create it again. Sometimes a broker is away meanwhile and gets both at once, or it
    cannot be notified of the deletion before the topic is created again.
    """
    universe, random = storm.universe, storm.random
    _, address = storm.broker()
    how, back_s = random.random(), random.choice([0.05, 0.5, 2, 6])
    if how < 0.2:
        storm.take_down(address, 9.0)
    elif how < 0.4:
        back_s = 3.2
        both = [pair for other in universe.nameservers for pair in ((address, other), (other, address))]
        storm.block("partition", both, 8.0)
        storm.block("partition", [(OPERATOR, address), (address, OPERATOR)], 3.1)
        storm.call_later(3.0, _cut_operator, storm)
    storm.record_fault("delete topic", RETURNS)
    universe.launch(OPERATOR, "admin", delete_main(universe, RETURNS))
    storm.call_later(back_s, _recreate, storm, random.choice([1, universe.setting.queues]))


def _cut_operator(storm: Storm) -> None:
    storm.universe.kill(OPERATOR, power=True)


def _recreate(storm: Storm, queues: int) -> None:
    storm.universe.launch(OPERATOR, "admin", recreate_main(storm.universe, RETURNS, queues))


def first_sends(storm: Storm) -> None:
    """Send every broker a first message of the same new topics at once; sometimes one of them is killed meanwhile."""
    universe, random = storm.universe, storm.random
    topics = [f"first-{random.randrange(1_000_000)}" for _ in range(random.choice([1, 3]))]
    if random.random() < 0.3:
        _, address = storm.broker()
        storm.call_later(random.uniform(0.0, 0.05), storm.take_down, address, random.choice([0.05, 0.5, 3]))
    for number, topic in enumerate(topics):
        storm.record_fault("first sends", topic)
        universe.launch(f"10.0.3.{20 + number}", "admin", first_sends_main(universe, topic))


def copy_store(storm: Storm) -> None:
    """Start a broker on a copy of another one's store, on another machine, while that one runs: it must end with exit 4."""
    universe = storm.universe
    name, address = storm.broker()
    if not universe.alive(address):
        return
    copy = f"10.0.5.{1 + storm.random.randrange(200)}"
    if copy in universe.loop.machines:
        return
    disk = universe.machine(address).disk.copied(f"{universe.setting.seed}/{copy}")
    universe.loop.machine(copy, disk=disk)
    storm.record_fault("copied", copy, f"the store of {name}")
    universe.launch_member(make_broker(universe, name, copy), "broker")


def strange_layouts(storm: Storm) -> None:
    """Send a broker the highest layout counter, the deletion of that topic, and the topic again."""
    name, _ = storm.broker()
    topic = f"strange-{storm.random.randrange(1_000_000)}"
    storm.record_fault("strange layouts", topic, f"at {name}")
    storm.universe.launch("10.0.3.30", "admin", strange_layouts_main(storm.universe, name, topic))


def take_name(storm: Storm) -> None:
    """Kill a broker, and let another store register under its name at every nameserver before the broker is back."""
    universe, random = storm.universe, storm.random
    name, address = storm.broker()
    if not universe.alive(address):
        return
    storm.take_down(address, random.choice([0.5, 2, 6]))
    storm.record_fault("take name", name)
    for nameserver in universe.nameservers:
        universe.launch("10.0.3.31", "admin", take_name_main(name, nameserver, random.choice([4.0, 15.0])))


KINDS = (reset_progress, begin_group, delete_topic, reset_at_a_restart, first_sends, copy_store, strange_layouts, take_name, purge_topic)
