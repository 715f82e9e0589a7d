"""A training script that is disturbed: what it is to meet is its first argument.

On a GPU, or without a recording on the CPU, which is what Python alone would do.
"""

import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import torch

WHAT, SEED = sys.argv[1], int(sys.argv[2])
DEVICE = os.environ.get("CHAOS_DEVICE", "cuda")
N_STEPS = 6
draw = random.Random(SEED)
heard = caught = 0
# torch imports hundreds of modules with the first optimizer: interrupted, or on several threads at
# once, such an import may fail by chance, also with Python alone.
torch.optim.SGD([torch.zeros(1)], lr=0.1)


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * N_STEPS

    def __getitem__(self, index):
        return torch.ones(16) * index


def made():
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    ).to(DEVICE)
    return model, torch.optim.Adam(model.parameters())


def step(model, optimizer, batch=None):
    batch = torch.randn(8, 16) if batch is None else batch
    model(batch.to(DEVICE)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def train(*, model=None, optimizer=None):
    if model is None:
        model, optimizer = made()
    for _ in range(N_STEPS):
        step(model, optimizer)


def watchdog():
    """Be interrupted again and again, by an exception of its own."""
    global heard, caught

    class Late(TimeoutError if SEED % 2 else BaseException):
        pass

    def hear(*_):
        global heard
        heard += 1
        raise Late

    # Adam makes two states in turn, and one without the other is an error of its own.
    model, _ = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    signal.signal(signal.SIGALRM, hear)
    for _ in range(4 * N_STEPS):
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0005, 0.02))
            step(model, optimizer)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Late:
            caught += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.05)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    except Late:
        caught += 1
    print("each once", heard == caught)


def threads():
    """Train on several threads at once, with a model each."""
    failed = []

    def run():
        try:
            train()
        except BaseException as error:
            failed.append(error)
            raise

    working = [threading.Thread(target=run, daemon=i == 0) for i in range(3)]
    for thread in working:
        thread.start()
    train()
    for thread in working:
        thread.join()
    print("failed", len(failed))


def shared():
    """Train one model on several threads."""
    model, optimizer = made()

    def run():
        for _ in range(N_STEPS):
            with torch.no_grad():
                model(torch.ones(2, 16, device=DEVICE))
            optimizer.step()

    working = [threading.Thread(target=run) for _ in range(3)]
    for thread in working:
        thread.start()
    for _ in range(N_STEPS):
        model(torch.ones(2, 16, device=DEVICE))
    for thread in working:
        thread.join()


def loader_killed():
    """Have a process that makes batches killed: torch raises that in a handler, perhaps more than once."""
    try:
        try:
            loader(is_killed=True)
        except RuntimeError as error:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            print("died", "DataLoader worker" in str(error))
    except RuntimeError as error:
        print("died", "DataLoader worker" in str(error))


def loader(method="fork", *, is_killed=False):
    """Have batches made by processes."""
    model, optimizer = made()
    batches = torch.utils.data.DataLoader(
        Batches(),
        batch_size=2,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    n, found = 0, iter(batches)
    for batch in found:
        step(model, optimizer, batch)
        n += 1
        if is_killed and n == 2:
            os.kill(found._workers[0].pid, signal.SIGKILL)
            while (
                True
            ):  # torch raises; a further batch may fail first, with an error of the connection
                time.sleep(0.01)
    print("batches", n)


def forks():
    """Fork in the midst of it: the child computes on the CPU, and ends in one way or another."""
    train()
    pid = os.fork()
    if not pid:
        torch.ones(4).sum()
        if SEED % 2:
            os._exit(5)
        sys.exit(5)
    train()
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def full_disk():
    """Let no file grow any more."""
    if SEED % 2:
        step(*made())
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    train()
    sys.stdout.flush()


def place_taken():
    if SEED % 2:
        Path("train.capture").write_text("theirs")
    else:
        Path("train.capture/theirs").mkdir(parents=True)
    train()


def stopped():
    """Train until a signal comes."""
    model, optimizer = made()
    print("ready", flush=True)
    for _ in range(400):
        step(model, optimizer)
    print("done", flush=True)


def stopped_and_caught():
    try:
        stopped()
    except KeyboardInterrupt:
        print("caught", flush=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(6)


def stopped_by_its_own_handler():
    def leave(*_):
        sys.exit(9)

    signal.signal(signal.SIGTERM, leave)
    stopped()


def gone():
    step(*made())
    os._exit(7)


def fails():
    train()
    raise LookupError("theirs")


WAYS = {
    "calm": train,
    "watchdog": watchdog,
    "threads": threads,
    "shared": shared,
    "loader": loader,
    "spawning loader": lambda: loader("spawn"),
    "loader killed": loader_killed,
    "forks": forks,
    "full disk": full_disk,
    "place taken": place_taken,
    "ctrl-c": stopped,
    "ctrl-c twice": stopped,
    "ctrl-c caught": stopped_and_caught,
    "terminated": stopped,
    "terminated and handled": stopped_by_its_own_handler,
    "killed": stopped,
    "gone": gone,
    "fails": fails,
}
if __name__ == "__main__":
    WAYS[WHAT]()
    sys.exit(3)
