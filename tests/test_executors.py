"""Executors: every task once, results as they finish, the first error ends all."""

import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from piecemill.cancelling import check
from piecemill.errors import ExecutorError, PlanError, SourceError, Stopped
from piecemill.executors import local, open_executor
from piecemill.executors.local import FuturesExecutor, LocalExecutor


def double(number):
    return 2 * number


@pytest.mark.parametrize("threads", [1, 2, 8, None])
def test_every_task_is_done_once(threads):
    tasks = list(range(100))
    assert sorted(open_executor("local", threads=threads).map(double, tasks)) == [(n, 2 * n) for n in tasks]


def test_no_tasks_is_no_work():
    assert list(open_executor("local").map(double, [])) == []


def test_a_function_may_return_nothing():
    assert list(open_executor("local").map(lambda _: None, [1])) == [(1, None)]


def test_an_executor_of_ones_own_is_taken_as_it_is():
    class Plain:
        name = "plain"

        def map(self, function, tasks, on_tick=None):
            return ((task, function(task)) for task in tasks)

    mine = Plain()
    assert open_executor(mine) is mine


@pytest.mark.parametrize("bad", ["spark", 3, None, object()])
def test_what_is_no_executor_is_refused(bad):
    with pytest.raises(PlanError, match=r"executor.*expected local, ray"):
        open_executor(bad)


def test_fewer_than_one_thread_is_refused():
    with pytest.raises(PlanError, match="threads=0"):
        LocalExecutor(0)


def test_results_come_before_all_tasks_are_done():
    first_was_seen = threading.Event()

    def second_waits(number):
        if number == 1:
            assert first_was_seen.wait(600)
        return number

    for _, number in open_executor("local", threads=2).map(second_waits, [0, 1]):
        if number == 0:
            first_was_seen.set()


def test_the_first_error_cancels_the_others_and_is_raised_when_they_have_ended():
    other_runs, ended, begun = threading.Event(), threading.Event(), []

    def one_fails(number):
        begun.append(number)
        if number == 0:
            assert other_runs.wait(600)
            raise SourceError("line 7 is bad")
        other_runs.set()
        try:
            while True:
                check()
        finally:
            ended.set()

    with pytest.raises(SourceError, match="line 7 is bad"):
        list(open_executor("local", threads=2).map(one_fails, range(50)))
    assert ended.is_set()
    assert sorted(begun) == [0, 1]


def test_the_error_that_cancelled_the_others_is_raised_though_they_end_before_it():
    runs, other_ended = threading.Event(), threading.Event()

    class FirstEndsLast(ThreadPoolExecutor):
        def submit(self, call, run, number, function, task):
            def ends_last():
                try:
                    return call(run, number, function, task)
                finally:
                    assert number == 1 or other_ended.wait(600)

            future = super().submit(ends_last)
            if number == 1:
                future.add_done_callback(lambda _: other_ended.set())
            return future

    def one_fails(number):
        if number == 0:
            assert runs.wait(600)
            raise SourceError("line 7 is bad")
        runs.set()
        while True:
            check()

    with FirstEndsLast(2) as pool, pytest.raises(SourceError, match="line 7 is bad"):
        list(FuturesExecutor(pool).map(one_fails, [0, 1]))


def test_an_interrupted_driver_cancels_what_runs_and_waits_for_it():
    runs, ended = threading.Event(), []

    def until_cancelled(number):
        runs.set()
        try:
            while True:
                check({"done": number})
        except Stopped:
            ended.append(number)
            raise

    def interrupt(_):
        assert runs.wait(600)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), closing(LocalExecutor(2).map(until_cancelled, [1, 2], interrupt)) as results:
        list(results)
    assert len(ended) >= 1


def test_an_interrupt_at_the_instant_in_which_a_task_ends_ends_the_run(monkeypatch):
    class Interrupted:
        def __init__(self):
            self.queue, self.was_interrupted = SimpleQueue(), False
            self.put = self.queue.put

        def get(self, timeout=None):
            future = self.queue.get(timeout=timeout)
            if not self.was_interrupted:
                self.was_interrupted = True
                raise KeyboardInterrupt
            return future

    def interrupted():
        with pytest.raises(KeyboardInterrupt):
            list(LocalExecutor(1).map(double, [1, 2]))

    monkeypatch.setattr(local, "SimpleQueue", Interrupted)
    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_an_error_in_the_loop_itself_cancels_what_runs():
    begun, ended = threading.Event(), []

    def one_goes_on(number):
        if number == 1:
            begun.set()
            try:
                while True:
                    check()
            finally:
                ended.append(number)
        return number

    def divide():
        with closing(LocalExecutor(2).map(one_goes_on, [0, 1])) as results:
            for _, number in results:
                assert begun.wait(600)
                1 / number

    with pytest.raises(ZeroDivisionError):
        divide()
    assert ended == [1]


def test_ticks_have_the_latest_progress_of_each_running_task():
    seen, both = [], threading.Event()

    def reports(number):
        check({"task": number, "blocks": 1})
        check({"task": number, "blocks": 2})
        assert both.wait(600)

    def on_tick(running):
        seen.append(sorted((each["task"], each["blocks"]) for each in running))
        if seen[-1] == [(0, 2), (1, 2)]:
            both.set()

    list(LocalExecutor(2).map(reports, [0, 1], on_tick))
    assert seen[-1] == []  # finished tasks are reported by their results only
    assert [(0, 2), (1, 2)] in seen


# Executors of the user's


def die(number):
    os._exit(number)


def test_a_pool_is_given_few_tasks_at_a_time_and_stays_open():
    taken = []

    class Tasks(list):
        def __getitem__(self, number):
            taken.append(number)
            return super().__getitem__(number)

    with ThreadPoolExecutor(2) as pool:
        results = FuturesExecutor(pool, in_flight=5).map(double, Tasks(range(100)))
        for done, _ in enumerate(results, 1):
            assert max(taken) < done + 5
        assert done == 100
        assert pool.submit(double, 4).result() == 8


def test_threads_of_a_pool_are_cancelled_too():
    runs, ended = threading.Event(), []

    def until_cancelled(number):
        runs.set()
        try:
            while True:
                check()
        finally:
            ended.append(number)

    def interrupt(_):
        assert runs.wait(600)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        with (
            pytest.raises(KeyboardInterrupt),
            closing(open_executor(pool).map(until_cancelled, [1, 2], interrupt)) as all_,
        ):
            list(all_)
        assert ended == [1]


def test_a_lost_process_of_a_pool_ends_the_run_with_what_to_do():
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with pool, pytest.raises(ExecutorError, match=r"a worker process was lost: .*Run it again"):
        list(open_executor(pool).map(die, [3, 4]))


# Parts


class Task(NamedTuple):
    number: int

    @property
    def index(self):
        return self.number


@pytest.mark.parametrize("parts", [1, 2, 5, 64])
def test_parts_have_every_task_once(parts):
    tasks = [Task(number) for number in range(20)]
    found = [open_executor(part=f"{number}/{parts}").map(double_index, tasks) for number in range(1, parts + 1)]
    assert sorted(task.index for part in found for task, _ in part) == list(range(20))


def double_index(task):
    return 2 * task.index


def test_a_part_goes_by_the_index_of_a_task_not_by_its_place_in_the_list():
    left = [Task(number) for number in (1, 4, 5, 8)]  # the others are done
    assert sorted(open_executor(part="2/4").map(double_index, left)) == [(Task(1), 2), (Task(5), 10)]


def test_an_address_without_ray_is_refused():
    with pytest.raises(PlanError, match=r"ray_address='auto' needs executor='ray'"):
        open_executor("local", ray_address="auto")


def test_outside_an_executor_check_does_nothing():
    check()
    check({"blocks": 3})
