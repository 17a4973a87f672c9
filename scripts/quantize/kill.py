#!/usr/bin/env python3
"""kill -9 at random points of `perigee quantize` or `prune`, then the same command again: the folder must be that of a run nobody killed.

    kill.py [--perigee target/release/perigee] [--times 20] [--seed 1] --scratch DIR -- quantize SOURCE TARGET --format nvfp4
    kill.py ... -- prune SOURCE TARGET --keep 4 --criterion random

TARGET is replaced by folders in DIR. Every trial kills once, at a moment drawn evenly over the time that a whole run took, and counts only if the
process was still alive. Exit code 0 if every trial ended with the same bytes.
"""
import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time


def digest(folder):
    """Of every file: name and content."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perigee", default="target/release/perigee")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("command", nargs="+", help="subcommand, SOURCE, TARGET, flags")
    args = parser.parse_args()

    def start(target):
        command = [args.perigee, *args.command[:2], target, *args.command[3:]]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    whole, target = (os.path.join(args.scratch, name) for name in ["whole", "killed"])
    shutil.rmtree(whole, ignore_errors=True)
    begin = time.monotonic()
    if start(whole).wait() != 0:
        sys.exit("the command fails by itself; run it to see why")
    length, expected = time.monotonic() - begin, digest(whole)
    rng, equal, done, late = random.Random(args.seed), 0, 0, 0
    while done < args.times:
        shutil.rmtree(target, ignore_errors=True)
        process, moment = start(target), rng.uniform(0, length)
        try:
            process.wait(moment)
            late += 1
            continue
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        left = sorted(os.listdir(target)) if os.path.isdir(target) else []
        again = start(target).wait()
        same = again == 0 and digest(target) == expected
        done, equal = done + 1, equal + same
        print(f"{done:3}: killed after {moment:6.2f} s of {length:.2f}, {len(left)} files there; again: exit {again}, "
              f"{'equal' if same else 'DIFFERENT'}", flush=True)
    print(f"{equal} of {args.times} equal ({len(expected)} files each; {late} runs ended before their kill and do not count)")
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(whole, ignore_errors=True)
    sys.exit(equal < args.times)


if __name__ == "__main__":
    main()
