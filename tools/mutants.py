"""Find out whether the tests notice small changes to the package: ``tox -e mutants``.

``mutants.json`` beside this file is a sample of 200 mutants: 150 of the core's Python, 50 of the
compiled kernel. Each is applied to a copy of the package. Then the pure and the scripted tests that
can reach it are run, fastest first, until one fails::

    python tools/mutants.py --directory RUN                 # all; continues after an interruption
    python tools/mutants.py --directory RUN --only 3,151    # some
    python tools/mutants.py --directory OLD --tree ../old   # the same mutants in another checkout
    python tools/mutants.py --directory RUN --against OLD   # compares what the tests kill
    python tools/mutants.py --directory RUN --draw          # a new sample (needs cosmic-ray)

* First the unchanged tests are run, to learn how long each takes, and which of them execute each
  line. Those that need Kafka or Spark fail, as there is no Java in these runs, and do not count.
* A Python mutant is tested by the tests that execute its statement. One that is executed by an
  import is tested by all, first those that execute anything in its file. There is no such record of
  compiled code: the tests in ``KERNEL`` test its mutants, those of the kernel and blocks first.
* A mutant is *killed* by a test that fails twice, by a crash, or by a test that hangs. It
  *survived* if all tests passed, and *timed out* if none had failed when the time was up. On a busy
  machine the time passes more slowly: it is divided by the load per core. A mutant is *gone* if its
  line is no longer in the file; the rest of a file may change. *unbuilt*: it does not compile.

The results are in ``RUN/results.jsonl``. They count only for the same package and tests. The exit
status is 1 if a mutant lives on that ``mutants_accepted.toml`` does not explain.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import queue
import signal
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

from mutants_copy import HERE, Copy, Mutant, applied, statement_of
from mutants_draw import commit_of, draw_kernel, draw_python

SAMPLE, ACCEPTED = HERE / "mutants.json", HERE / "mutants_accepted.toml"
SEED, PYTHON_MUTANTS, KERNEL_MUTANTS = 1, 150, 50
#: Folders of tests that need Kafka, Spark or a web server, or that do not test the core.
OTHERS = {"benchmarks", "chaos", "cli", "cluster", "exactly_once", "house", "peers", "spark"}
OTHERS |= {"brokers", "typing", "web"}
#: Tests of the model itself, which take minutes.
SLOW = "*/model/test_broken_*"
#: Folders of tests that reach compiled code; the first two test it directly, and are run first.
KERNEL = ["kernel", "block", "producer", "pipeline", "model", "transactions", "process", "testing"]
#: The first run of a mutant imports this many test files; most mutants need no second run.
FIRST_FILES = 6
#: A test hangs if it takes longer than this many seconds, and this factor of its usual time.
HUNG, HUNG_FACTOR = 60.0, 20.0
#: pytest's exit status if a test has failed, and if there is none.
FAILED, NO_TESTS = 1, 5

Result = dict[str, Any]


class Record:
    """Which tests pass without a mutant, how long they take, and what they execute."""

    def __init__(self, directory: Path, files: list[str]) -> None:
        self._directory = directory
        self._files = files
        self.seconds: dict[str, float] = {}

    def make(self, copies: list[Copy]) -> None:
        """Run the tests of each folder that has not been run, and read what was recorded."""
        self._directory.mkdir(parents=True, exist_ok=True)
        folders: queue.Queue[str] = queue.Queue()
        tests = copies[0].root / "tests"
        names = sorted(
            {path.parent.relative_to(tests).parts[0] for path in tests.glob("*/**/test_*.py")}
        )
        wanted = [name for name in names if name not in OTHERS]
        for name in wanted:
            if not (self._directory / f"{name}.json").exists():
                folders.put(name)
        in_parallel(copies, folders, self._folder)
        for name in wanted:
            self.seconds |= json.loads((self._directory / f"{name}.json").read_text())

    def _folder(self, copy: Copy, name: str) -> None:
        print(f"recording the tests of {name}", flush=True)
        data = self._directory / f"{name}.sqlite"
        data.unlink(missing_ok=True)
        sources = [str(copy.root / file) for file in self._files]
        passed, status, ended = {}, None, False
        words = [f"tests/{name}", f"--ignore-glob={SLOW}"]
        for test, what, *more in copy.pytest(words, 7_200, coverage=str(data), sources=sources):
            if what == "passed":
                passed[test] = more[0]
            ended |= what == "end"
            status = more[0] if what == "status" else status
        if status is None or not ended:
            raise SystemExit(f"the tests of {name} did not end (status {status}): {copy.output()}")
        (self._directory / f"{name}.json").write_text(json.dumps(passed))

    def tests_for(self, mutant: Mutant, text: str) -> list[str]:
        """Return the tests that can reach *mutant* in a file with *text*, fastest first."""
        others: set[str] = set()
        if not mutant["file"].endswith(".py"):
            found = {test for test in self.seconds if folder_of(test) in KERNEL}
        else:
            statement = statement_of(text, mutant)
            found = self._tests_that_execute(mutant["file"], statement)
            others = set() if statement else self.seconds.keys() - found
        return [*self._by_time(found), *self._by_time(others)]

    def _by_time(self, tests: set[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))

    def _tests_that_execute(self, file: str, lines: range | None) -> set[str]:
        from coverage import CoverageData

        found: set[str] = set()
        for path in self._directory.glob("*.sqlite"):
            data = CoverageData(str(path))
            data.read()
            for measured in data.measured_files():
                if measured.endswith("/" + file):
                    for line, contexts in data.contexts_by_lineno(measured).items():
                        if lines is None or line in lines:
                            found.update(contexts)
        return found & self.seconds.keys()


def folder_of(test: str) -> str:
    """Return the folder of a test."""
    return test.split("/")[1]


def batches_of(tests: list[str], mutant: Mutant) -> list[list[str]]:
    """Divide the tests: few files, which are imported quickly, and the rest."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))[:FIRST_FILES]
    if not mutant["file"].endswith(".py"):
        files = [test.partition("::")[0] for test in tests if folder_of(test) in KERNEL[:2]]
    first = set(files)
    early = [test for test in tests if test.partition("::")[0] in first]
    late = [test for test in tests if test.partition("::")[0] not in first]
    return [batch for batch in (early, late) if batch]


def judge(copy: Copy, mutant: Mutant, record: Record, limit: float) -> Result:
    """Run the tests against one mutant."""
    path = copy.root / mutant["file"]
    if not path.exists() or applied(mutant, path.read_text()) is None:
        return {"outcome": "gone"}
    tests = record.tests_for(mutant, path.read_text())
    result: Result = {"outcome": "survived", "ran": 0, "of": len(tests), "seconds": 0.0}
    with copy.mutated(mutant) as is_built:
        if not is_built:
            return {"outcome": "unbuilt", "reason": copy.output()}
        for batch in batches_of(tests, mutant):
            run_all(copy, batch, record, limit, result)
            if result["outcome"] != "survived":
                break
    return result


def run_all(copy: Copy, tests: list[str], record: Record, limit: float, result: Result) -> None:
    """Run some tests until one fails that also fails by itself, and update *result*.

    A busy machine makes tests fail that a mutant does not concern.
    """
    while tests:
        found = run_batch(copy, tests, record, limit - result["seconds"])
        result["ran"] += found.pop("ran")
        result["seconds"] += found.pop("seconds")
        is_failure = found.pop("failed")
        result |= found
        if not is_failure:
            return
        again = run_batch(copy, [found["test"]], record, limit)
        result["seconds"] += again["seconds"]
        if again["outcome"] != "survived":
            return
        result |= {"outcome": "survived", "unconfirmed": found["test"]}
        tests = tests[tests.index(found["test"]) + 1 :]


def run_batch(copy: Copy, tests: list[str], record: Record, limit: float) -> Result:
    """Run some tests until one fails."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    result: Result = {"outcome": "timed out", "ran": 0, "seconds": 0.0, "test": ""}
    result["failed"] = False
    since = 0.0
    for test, what, *more in copy.pytest(files, limit, tests=tests):
        if what == "start":
            result["test"], since = test, result["seconds"]
        elif what == "reason":
            result["reason"] = more[0]
        elif what == "tick":
            result["seconds"] = round(more[0], 1)
            usual = record.seconds.get(result["test"], limit)
            if more[0] - since > HUNG + HUNG_FACTOR * usual:
                return result | {"outcome": "killed", "reason": "it hangs"}
        elif what == "status":
            if more[0] in (0, NO_TESTS):
                result["outcome"] = "survived"
            elif more[0] is not None:
                result |= {"outcome": "killed", "failed": more[0] == FAILED and "reason" in result}
                result.setdefault("reason", f"exit status {more[0]}: {copy.output()}")
            elif not result["test"] and limit > HUNG:
                result |= {"outcome": "killed", "reason": "an import hangs"}
        elif what != "end":
            result["ran"] += 1
    return result


def judge_all(
    copies: list[Copy],
    mutants: dict[int, Mutant],
    record: Record,
    limit: float,
    path: Path,
    tree: str,
) -> None:
    """Judge the mutants and append the results to the file at *path*."""
    quick = sorted(record.seconds, key=record.seconds.__getitem__)[:20]
    for copy in copies:
        found = run_batch(copy, quick, record, limit)
        if found["outcome"] != "survived":
            raise SystemExit(f"tests fail without a mutant: {found}")
    waiting: queue.Queue[int] = queue.Queue()
    for number in sorted(mutants):
        waiting.put(number)

    def work(copy: Copy, number: int) -> None:
        result = judge(copy, mutants[number], record, limit)
        name = fingerprint(words=mutants[number])
        with path.open("a") as results:
            line = {"number": number, "mutant": name, "tree": tree, **result}
            results.write(json.dumps(line) + "\n")
        print(number, result["outcome"], result.get("test", ""), flush=True)

    in_parallel(copies, waiting, work)


def in_parallel(copies: list[Copy], items: queue.Queue[Any], work: Any) -> None:
    """Call ``work(copy, item)`` for each item, in as many threads as there are copies."""
    failures: list[BaseException] = []

    def run(copy: Copy) -> None:
        try:
            while not failures:
                work(copy, items.get_nowait())
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(copy,), daemon=True) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def fingerprint(*roots: Path, words: object = None) -> str:
    """Return what identifies the sources in some directories, and *words*."""
    found = hashlib.sha256(json.dumps(words).encode())
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix in {".py", ".pyx", ".pxi"}:
                found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def results_in(directory: Path, mutants: dict[int, Mutant], tree: str = "") -> dict[int, Result]:
    """Return the results of *mutants* by number, in one tree or in the last one."""
    path = directory / "results.jsonl"
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    tree = tree or (results[-1]["tree"] if results else "")
    found = {each["mutant"]: each for each in results if each["tree"] == tree}
    names = {number: fingerprint(words=mutant) for number, mutant in mutants.items()}
    return {number: found[name] for number, name in names.items() if name in found}


def report(mutants: dict[int, Mutant], results: dict[int, Result], against: Path | None) -> int:
    """Print the table; return the exit status."""
    accepted = {int(key): why for key, why in tomllib.loads(ACCEPTED.read_text()).items()}
    totals = collections.Counter()
    unexplained = []
    for number, result in sorted(results.items()):
        mutant = mutants[number]
        outcome = result["outcome"]
        totals["Python" if mutant["file"].endswith(".py") else "kernel", outcome] += 1
        lives = outcome in ("survived", "timed out")
        if lives and number not in accepted:
            unexplained.append(number)
        place = f"{mutant['file'].removeprefix('pykaproducer/')}:{mutant['line']}"
        tests = f"{result.get('ran', 0)} of {result.get('of', 0)}"
        print(
            f"{number:3} {outcome:9} {result.get('seconds', 0):6.1f} s {tests:>12}  {place:40} "
            f"{mutant['operator']}: {accepted.get(number, '') if lives else result.get('test', '')}"
        )
    for (kind, outcome), count in sorted(totals.items()):
        print(f"{kind}: {count} {outcome}")
    if against is not None:
        theirs = {
            n for n, each in results_in(against, mutants).items() if each["outcome"] == "killed"
        }
        theirs &= {n for n, each in results.items() if each["outcome"] not in ("gone", "unbuilt")}
        lost = sorted(n for n in theirs if results[n]["outcome"] != "killed")
        print(
            f"{len(theirs) - len(lost)} of the {len(theirs)} killed there are killed; not: {lost}"
        )
    if unexplained:
        print(f"live without an explanation in {ACCEPTED.name}: {unexplained}")
    return 1 if unexplained else 0


def draw(tree: Path, results: Path) -> None:
    """Write a new sample; those that do not compile according to *results* are drawn anew."""
    lines = results.read_text().splitlines() if results.exists() else []
    unbuilt = {each["mutant"] for each in map(json.loads, lines) if each["outcome"] == "unbuilt"}

    def compiles(mutant: Mutant) -> bool:
        return fingerprint(words=mutant) not in unbuilt

    mutants = draw_python(tree, PYTHON_MUTANTS, SEED)
    mutants += draw_kernel(tree, KERNEL_MUTANTS, SEED, compiles)
    head = f'{{"commit": "{commit_of(tree)}", "seed": {SEED}, "mutants": ['
    SAMPLE.write_text("\n".join([head, ",\n".join(map(json.dumps, mutants)), "]}"]) + "\n")


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = HERE.parent
    parser.add_argument("--directory", type=Path, required=True, help="of the results and copies")
    parser.add_argument("--tree", type=Path, default=here, help="a checkout with a built kernel")
    parser.add_argument(
        "--tests", type=Path, help="a checkout whose tests are used; default: --tree"
    )
    parser.add_argument("--only", help="the numbers of mutants, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="copies at once; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=180, help="per mutant; default: 180")
    parser.add_argument("--against", type=Path, help="the directory of other results to compare")
    parser.add_argument("--report", action="store_true", help="only print the results")
    parser.add_argument("--draw", action="store_true", help=f"write a new {SAMPLE.name}")
    arguments = parser.parse_args()
    tree, directory = arguments.tree.resolve(), arguments.directory.resolve()
    tests = (arguments.tests or tree).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if arguments.draw:
        draw(tree, directory / "results.jsonl")
        return 0
    sample = json.loads(SAMPLE.read_text())["mutants"]
    mutants = dict(enumerate(sample, 1))
    key = "" if arguments.report else fingerprint(tree / "pykaproducer", tests / "tests")
    chosen = {int(each) for each in arguments.only.split(",")} if arguments.only else set(mutants)
    if not arguments.report:
        copies = [Copy(directory, str(job), tree, tests) for job in range(arguments.jobs)]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        try:
            files = sorted({each["file"] for each in sample if each["file"].endswith(".py")})
            record = Record(directory / f"record-{key}-{fingerprint(words=files)[:4]}", files)
            record.make(copies)
            left = {number: mutants[number] for number in chosen}
            for number in results_in(directory, mutants, key):
                left.pop(number, None)
            judge_all(copies, left, record, arguments.seconds, directory / "results.jsonl", key)
        finally:
            for copy in copies:
                copy.stop()
    results = results_in(directory, {number: mutants[number] for number in chosen}, key)
    return report(mutants, results, arguments.against)


if __name__ == "__main__":
    raise SystemExit(main())
