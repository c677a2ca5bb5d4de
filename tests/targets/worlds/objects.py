"""Objects of known types, and holes in CPython's pools.

A forked child, whose heap is the same, prints the truth as one line of JSON and waits for a byte on stdin; the parent
waits for the child, and allocates nothing after the interpreter has counted its pools.
"""
import gc
import json
import os
import sys

NUMBER = 6000


class Point:
    def __init__(self, x):
        self.x = x
        self.y = x


class Plain:
    pass


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a
        self.b = None


class DictSub(dict):
    pass


class ListSub(list):
    pass


class TupleSub(tuple):
    pass


class StrSub(str):
    pass


def truth(path, parent):
    """What `sys._debugmallocstats` has written of the pools, and what was made."""
    classes, pools = {}, {}
    for line in open(path):
        words = line.split()
        if len(words) == 5 and all(word.isdigit() for word in words):
            classes[words[1]], pools[words[1]] = int(words[3]), int(words[2])
    made = "Point Plain Slots DictSub ListSub TupleSub StrSub".split()
    return {
        "library": "CPython",
        "version": "%d.%d.%d" % sys.version_info[:3],
        "pid": parent,
        "classes": classes,
        "pools": pools,
        "types": {name: NUMBER for name in made},
    }


keep = []
keep += [Point(i) for i in range(NUMBER)]
keep += [Plain() for i in range(NUMBER)]
keep += [Slots(i) for i in range(NUMBER)]
keep += [DictSub(a=i) for i in range(NUMBER)]
keep += [ListSub([i]) for i in range(NUMBER)]
keep += [TupleSub((i, i)) for i in range(NUMBER)]
keep += [StrSub("s%d" % i) for i in range(NUMBER)]
keep += [complex(i, i) for i in range(NUMBER)]
keep += [frozenset([i]) for i in range(NUMBER)]
junk = [[i, i] for i in range(200000)]
keep.append(junk[::37])
del junk
gc.collect()
gc.disable()
path = sys.argv[1]
own = os.getpid()
file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
os.dup2(file, 2)
# The first round makes what the calls themselves keep.
sys._debugmallocstats()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
os.ftruncate(file, 0)
os.lseek(file, 0, os.SEEK_SET)
sys._debugmallocstats()
child = os.fork()
if child == 0:
    try:
        text = json.dumps(truth(path, own)) + "\n"
        os.unlink(path)
        os.write(1, text.encode())
        os.read(0, 1)
    finally:
        os._exit(0)
os.waitpid(child, 0)
