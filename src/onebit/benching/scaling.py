"""The engine with one thread and with more of them, in turns: what the cores of a machine give."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onebit.benching.measuring import MOST_CALLS, Effort
from onebit.engine import Engine
from onebit.peers import onebit_net
from onebit.peers.agreement import draw_images
from onebit.peers.runner import Bursts, burst, times_faster


@dataclass
class Share:
    """A number of threads, and the seconds of calls with them."""

    threads: int
    bursts: Bursts = field(default_factory=list)


@dataclass
class Scaling:
    """Batches of one size, by several numbers of threads; the first is one.

    had_cores   the share of their time in which the threads had a core each; less than 1 where others had them
    """

    batch: int
    shares: list[Share]
    had_cores: float = 1.0

    def milliseconds(self, share: Share) -> float:
        """Of one call: the median of all."""
        return 1e3 * statistics.median(taken for burst in share.bursts for taken in burst)

    def times_one_thread(self, share: Share) -> float:
        """How many times as fast as one thread: the median over rounds of the ratio within a round."""
        return times_faster(share.bursts, self.shares[0].bursts)


def doubling(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def measure_scaling(
    engines: list[Engine], way: str, batch: int, effort: Effort, advance: Callable[[], None]
) -> Scaling:
    """Time one net that is loaded with several numbers of threads. Every turn calls `advance`.

    way   of `onebit_net.ways`, the same for all: which layout images have is not what is compared
    """
    scaling = Scaling(batch, [Share(engine.threads) for engine in engines])
    images = draw_images(batch, engines[0].model.graph.input_shape)
    runners = [onebit_net.ways(engine)[way]() for engine in engines]
    x = runners[0].enter(images)
    wanted = had = 0.0
    for _ in range(effort.rounds):
        for share, runner in zip(scaling.shares, runners, strict=True):
            began, computed = time.perf_counter(), time.process_time()
            share.bursts.append(burst(runner.run, x, effort.seconds, MOST_CALLS))
            had += time.process_time() - computed  # of all threads; those that wait for others count, too
            wanted += share.threads * (time.perf_counter() - began)
            advance()
    scaling.had_cores = min(1.0, had / wanted)
    return scaling
