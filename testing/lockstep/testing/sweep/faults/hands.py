"""What people do, at bad times: progress set back and forward by hand, groups that begin, a topic that is deleted and made anew."""

from lockstep.admin.reset_plan import Target
from lockstep.testing.sweep.begins import begin_one
from lockstep.testing.sweep.operators import reset_main
from lockstep.testing.sweep.storm import Storm
from lockstep.testing.sweep.worlds import TOPIC

OPERATOR = "10.0.3.2"


def reset_progress(storm: Storm) -> None:
    """Of a running group, or of one that is stopped meanwhile: to the beginning, the end, an offset, a time."""
    random, universe = storm.random, storm.universe
    group = random.choice(universe.setting.groups)
    word = random.choice(["beginning", "end", "offset", "offset", "time"])
    target = Target(word, random.randrange(1_001 if word == "offset" else 60_000))
    if random.random() < 0.3:
        storm.note("reset of a stopped group", group, target)
        for address in universe.consumers:
            universe.stop(address)
            storm.later(random.choice([4, 6]), storm.start_when_ended, address)
        storm.later(random.choice([1, 3]), _reset, storm, group, target)
    else:
        storm.note("reset progress", group, target)
        _reset(storm, group, target)


def _reset(storm: Storm, group: str, target: Target) -> None:
    storm.universe.launch(OPERATOR, "admin", reset_main(storm.universe, group, TOPIC, target))


def begin_group(storm: Storm) -> None:
    """A group that nobody knew begins, and often a broker dies while it does."""
    universe, random = storm.universe, storm.random
    if begin_one(universe) is not None and random.random() < 0.5:
        _, address = storm.broker()
        storm.later(random.uniform(0.0, 1.0), _kill, storm, address, random.choice([0.05, 0.5, 3]))


def _kill(storm: Storm, address: str, back_s: float) -> None:
    storm.note("kill", address)
    storm.universe.kill(address)
    storm.later(back_s, storm.universe.start, address)


KINDS = (reset_progress, begin_group)
