"""Encoding on every core: processes that get blocks and give tokens, in order, and end when their parent does."""

import contextlib
import multiprocessing
import os
import queue
import signal
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from nugpt.data.encode import Encoded, SplitRule, encode_block
from nugpt.data.readers import Block, Columns
from nugpt.data.tokenizer import Tokenizer, stored_tokenizer

# An ordinary block has a megabyte, so these hold nobody up.
MAX_HELD_BYTES, HELD_BYTES_PER_WORKER = 16 << 20, 2 << 20


@dataclass(frozen=True)
class Job:
    """What a worker must know beside the block itself; the tokenizer lies in the prepared directory."""

    directory: str
    end_of_text: str | None
    columns: Columns
    rule: SplitRule

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer."""
        return stored_tokenizer(Path(self.directory), self.end_of_text)


def encode_in_order(blocks: Iterable[Block], job: Job, workers: int) -> Generator[tuple[Block, Encoded], None, None]:
    """Encode blocks on that many processes (one: this process) and yield them in the order they came."""
    if workers == 1:
        tokenizer = job.tokenizer()
        for block in blocks:
            yield block, encode_block(block, tokenizer, job.columns, job.rule)
        return
    # A thread for each process waits for its answer, so that neither side ever waits on a full pipe.
    with _processes(job, workers) as idle, ThreadPoolExecutor(workers) as threads:
        waiting: deque[tuple[Block, Future[Encoded]]] = deque()
        held, max_held = 0, max(MAX_HELD_BYTES, workers * HELD_BYTES_PER_WORKER)
        try:
            for block in blocks:
                # A worker holds many times the bytes of its block: few very long documents at a time.
                while waiting and (len(waiting) > workers or held + block.size > max_held):
                    first, answer = waiting.popleft()
                    held -= first.size
                    yield first, answer.result()
                waiting.append((block, threads.submit(_ask, idle, block)))
                held += block.size
            while waiting:
                first, answer = waiting.popleft()
                yield first, answer.result()
        finally:
            threads.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _processes(job: Job, workers: int) -> Iterator["queue.SimpleQueue[Connection]"]:
    # Spawned, so that a worker holds its own end of its own pipe and nothing else: when the parent is killed the pipe
    # breaks, and the worker ends.
    context = multiprocessing.get_context("spawn")
    idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
    started = []
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, job), daemon=True)
            with _interrupts_held():
                process.start()
            theirs.close()
            started.append((process, ours))
            idle.put(ours)
        yield idle
    finally:
        for _, ours in started:
            ours.close()
        for process, _ in started:
            process.join()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Begin a process that Ctrl-C does not reach, even while it starts; one that comes now reaches this one after."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which spawning would do, and let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what is begun inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ask(idle: "queue.SimpleQueue[Connection]", block: Block) -> Encoded:
    connection = idle.get()
    try:
        connection.send(block)
        answer = connection.recv()
        if isinstance(answer, Encoded):
            answer = replace(answer, tokens=np.frombuffer(connection.recv_bytes(), answer.tokens.dtype))
    except (EOFError, OSError):
        raise OSError("a worker process ended before its work was done (killed, or out of memory?)") from None
    finally:
        idle.put(connection)
    if isinstance(answer, str):
        raise RuntimeError(f"a worker process failed: {answer}")
    assert isinstance(answer, Encoded)
    return answer


def _serve(connection: Connection, job: Job) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; we end when the pipe closes
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are shared out among processes already
    tokenizer = job.tokenizer()
    with contextlib.suppress(EOFError, OSError):
        while True:
            block = connection.recv()
            try:
                answer: Encoded | str = encode_block(block, tokenizer, job.columns, job.rule)
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            if isinstance(answer, str):
                connection.send(answer)
                continue
            # The tokens go as they lie in memory; pickling them would make two copies more.
            connection.send(replace(answer, tokens=answer.tokens[:0]))
            connection.send_bytes(answer.tokens.view(np.uint8).data)
