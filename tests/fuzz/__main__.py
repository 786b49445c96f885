"""``python -m fuzz``: random cases until the time is over; exit status 1 where one does not hold.

Case n of a seed is always the same. A case that fails is shrunk and written to a file, which
``tests/fuzz/test_fuzz.py`` replays once it lies in ``tests/fuzz/cases``.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

KAFKA_EVERY = 400
CASE_SECONDS_MAX = 900


def main() -> int:
    """The command."""
    asked = arguments()
    if asked.check:
        from fuzz import faults

        return faults.check(asked.seed, asked.only_fault)
    if asked.fault:  # none: a run for comparison
        from fuzz import faults

        faults.put_in(asked.fault)
    if asked.replay:
        return replay(asked.replay)
    return Run(asked).run()


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long new cases are begun")
    parser.add_argument("--seed", type=int, default=None, help="by default a fresh one, printed")
    parser.add_argument("--case", type=int, help="only this case of the seed")
    parser.add_argument("--family", help="one of judges.WEIGHTS or judges.ON_SPARK only")
    parser.add_argument("--events", type=int, help="stop after so many records, too")
    parser.add_argument("--largest", type=int, default=40_000, help="records of a case at most")
    parser.add_argument("--in-process", action="store_true", help="without Spark and Kafka Streams")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many differences")
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-cases"), help="where they are written"
    )
    parser.add_argument("--no-shrink", action="store_true", help="write them as they were drawn")
    parser.add_argument("--replay", type=Path, help="judge a case file")
    parser.add_argument("--check", action="store_true", help="are faults in the code found?")
    parser.add_argument("--only-fault", help="with --check: this one only")
    parser.add_argument("--fault", help="run with a fault of faults.py in the code")
    asked = parser.parse_args()
    if asked.seed is None:
        asked.seed = random.SystemRandom().randrange(10**6)
    return asked


def replay(path: Path) -> int:
    """Judge a case file."""
    from fuzz import judges
    from fuzz.case import Case

    problem = judges.difference(Case.from_json(path.read_text()))
    print(problem or "holds")
    return int(problem is not None)


@dataclass
class Run:
    """One run of the command, and what it has come to."""

    asked: argparse.Namespace
    cases: int = 0
    last: int = 0
    events: int = 0
    differences: int = 0
    asked_kafka: list[object] = field(default_factory=list)
    kafka_cases: int = 0
    spark_cases: int = 0

    def run(self) -> int:
        """Judge case after case."""
        from fuzz import judges, spark

        print(f"fuzz: seed {self.asked.seed}", flush=True)
        # A fault must be found within a minute of the processor's time, however busy it is.
        clock = time.monotonic if self.asked.fault is None else time.process_time
        begun = shown = clock()
        end = begun + 60 * self.asked.minutes
        number = self.asked.case or 0
        while clock() < end and self.differences < self.asked.failures:
            faulthandler.dump_traceback_later(CASE_SECONDS_MAX, exit=True)  # a case that hangs
            options = {"only": self.asked.family, "largest": self.asked.largest}
            case = judges.drawn(self.asked.seed, number, **options)
            self.judged(number, case, judges.difference(case))
            if not self.asked.in_process:
                self.by_kafka(number, case)
                if number % spark.EVERY == spark.EVERY - 1:
                    self.by_spark(number)
            number += 1
            if clock() > shown + 10:
                shown = clock()
                print(self.progress(shown - begun), flush=True)
            if self.asked.case is not None or self.events >= (self.asked.events or 10**18):
                break
        faulthandler.cancel_dump_traceback_later()
        if not self.asked.in_process:
            self.ask_kafka()
        print(f"fuzz: seed {self.asked.seed}: {self.progress(clock() - begun)}", flush=True)
        return int(self.differences > 0)

    def progress(self, seconds: float) -> str:
        """How far it is."""
        parts = [
            f"{self.cases} cases to {self.last}",
            f"{self.events} events",
            f"{self.differences} differences",
        ]
        if not self.asked.in_process:
            parts += [f"{self.kafka_cases} by Kafka Streams", f"{self.spark_cases} on Spark"]
        return f"{', '.join(parts)}, {seconds:.0f} s"

    def judged(self, number: int, case: object, problem: str | None) -> None:
        """Count a case; shrink and write it where it does not hold."""
        from fuzz import judges, shrink
        from fuzz.case import Case

        assert isinstance(case, Case)
        self.cases, self.last = self.cases + 1, number
        self.events += len(case.records)
        if problem is None:
            return
        self.differences += 1
        print(f"case {number} ({case.family}): {problem[:1000]}", flush=True)
        if not self.asked.no_shrink:
            case = shrink.shrunk(case, judges.like(problem))
            print(f"shrunk to {len(case.records)} records: {judges.difference(case)}"[:1000])
        self.written(number, case)

    def written(self, number: int, case: object) -> None:
        """Write a case that does not hold."""
        from fuzz.case import Case

        assert isinstance(case, Case)
        if self.asked.fault is not None:
            return
        self.asked.out.mkdir(parents=True, exist_ok=True)
        path = self.asked.out / f"{case.family}-{self.asked.seed}-{number}.json"
        path.write_text(case.to_json())
        print(f"written to {path}", flush=True)

    def by_kafka(self, number: int, case: object) -> None:
        """Keep a case for Kafka Streams, which is asked for many at once."""
        self.asked_kafka.append(case)
        if len(self.asked_kafka) >= KAFKA_EVERY:
            self.ask_kafka()

    def ask_kafka(self) -> None:
        """Ask Kafka Streams, where its oracle is."""
        from bench.kafka_streams import ORACLE

        from fuzz import families

        cases, self.asked_kafka = self.asked_kafka, []
        if not ORACLE.exists():
            return
        differences, count = families.unlike_kafka(cases)  # type: ignore[arg-type]
        self.kafka_cases += count
        for case, what in differences:
            self.differences += 1
            print(f"{what}: {case.to_json()[:500]}")
            self.written(self.kafka_cases, case)

    def by_spark(self, number: int) -> None:
        """A case on Spark, with files."""
        from fuzz import spark

        case = spark.drawn(self.asked.seed, number)
        self.spark_cases += 1
        self.events += len(case.records)
        problem = spark.difference(case)
        if problem is not None:
            self.differences += 1
            print(f"case {number} on Spark: {problem[:1000]}", flush=True)
            self.written(number, case)


if __name__ == "__main__":
    sys.exit(main())
