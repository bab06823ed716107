"""Gives each region of rdma-core's tests pages of its own, and counts the regions that are mapped.

pyverbs allocates the 1 KiB of most tests on the heap, which a daemon never maps. With pages of
their own, the library exchanges the memory when it is registered (SOFTROCE_MEMORY=auto). The tests
are unchanged.
"""
import ctypes
import mmap
import re
import urllib.request
import weakref

import pyverbs.mr

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def allocate(owner, length):
    """Returns memory between two pages without access. It is unmapped with its owner."""
    length += -length % mmap.PAGESIZE
    whole = length + 2 * mmap.PAGESIZE
    start = libc.mmap(None, whole, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert start != ctypes.c_void_p(-1).value, ctypes.get_errno()
    weakref.finalize(owner, libc.munmap, start, whole).atexit = False
    address = start + mmap.PAGESIZE
    assert not libc.mprotect(address, length, mmap.PROT_READ | mmap.PROT_WRITE)
    return address


def install(modules, metrics):
    """Replaces MR in modules of tests. The function it returns tells how many of how many regions
    of this process were mapped, by the daemon's metrics."""
    count = [0, 0]

    def mapped():
        text = urllib.request.urlopen(metrics).read().decode()
        values = re.findall(r'^softroce_memory_regions\{backing="mapped",.*\} (\d+)$', text, re.M)
        return sum(map(int, values))

    class MR(pyverbs.mr.MR):
        def __init__(self, creator, length=0, access=0, address=None, implicit=False, **more):
            if address is None and length and not implicit:
                address = allocate(self, length)
            before = mapped()
            super().__init__(creator, length, access, address, implicit, **more)
            count[0] += mapped() > before
            count[1] += 1

    for m in modules:
        if getattr(m, "MR", None) is pyverbs.mr.MR:
            m.MR = MR
    return lambda: tuple(count)
