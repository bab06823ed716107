# SPDX-License-Identifier: Apache-2.0
"""Puts, gets, atomics and collectives of OpenSHMEM, for oshrun. Each process compares the results."""

import ctypes
import sys

shmem = ctypes.CDLL("liboshmem.so.40", mode=ctypes.RTLD_GLOBAL)
shmem.shmem_malloc.restype = ctypes.c_void_p
shmem.shmem_malloc.argtypes = [ctypes.c_size_t]
Pointer, PE, Size, Long = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_long
for name, result, arguments in [
    ("shmem_long_put", None, [Pointer, Pointer, Size, PE]),
    ("shmem_long_get", None, [Pointer, Pointer, Size, PE]),
    ("shmem_long_atomic_add", None, [Pointer, Long, PE]),
    ("shmem_long_atomic_fetch_add", Long, [Pointer, Long, PE]),
    ("shmem_long_atomic_compare_swap", Long, [Pointer, Long, Long, PE]),
    ("shmem_long_atomic_fetch", Long, [Pointer, PE]),
    ("shmem_broadcast64", None, [Pointer, Pointer, Size, PE, PE, PE, PE, Pointer]),
]:
    getattr(shmem, name).restype = result
    getattr(shmem, name).argtypes = arguments

WORDS = 20000


def symmetric(words):
    """Allocates words in the symmetric heap, and sets them to zero."""
    return (Long * words).from_address(shmem.shmem_malloc(8 * words))


def require(claim, what):
    if not claim:
        sys.exit(f"PE {me}: wrong result: {what}")


shmem.shmem_init()
me, n = shmem.shmem_my_pe(), shmem.shmem_n_pes()
following, previous = (me + 1) % n, (me - 1) % n

# Each process puts its numbers into the memory of the next one, and gets those of the one before.
source, target = symmetric(WORDS), symmetric(WORDS)
source[:] = range(me * WORDS, (me + 1) * WORDS)
fetched = (Long * WORDS)()
shmem.shmem_barrier_all()
shmem.shmem_long_put(target, source, WORDS, following)
shmem.shmem_long_get(fetched, source, WORDS, previous)
shmem.shmem_barrier_all()
expected = list(range(previous * WORDS, (previous + 1) * WORDS))
require(target[:] == expected, "put")
require(fetched[:] == expected, "get")

# All processes count in the memory of the first one: by atomics, and by a get and a put under a lock.
counter, lock, copy = symmetric(2), symmetric(1), (Long * 1)()
counter[0] = counter[1] = lock[0] = 0
shmem.shmem_barrier_all()
values = [shmem.shmem_long_atomic_fetch_add(counter, 1, 0) for _ in range(100)]
require(values == sorted(set(values)), "fetch-and-add")
for _ in range(100):
    shmem.shmem_long_atomic_add(counter, 1, 0)
for _ in range(50):
    while shmem.shmem_long_atomic_compare_swap(lock, 0, me + 1, 0) != 0:
        pass
    shmem.shmem_long_get(copy, ctypes.addressof(counter) + 8, 1, 0)
    copy[0] += 1
    shmem.shmem_long_put(ctypes.addressof(counter) + 8, copy, 1, 0)
    shmem.shmem_quiet()
    require(shmem.shmem_long_atomic_compare_swap(lock, me + 1, 0, 0) == me + 1, "compare-and-swap")
shmem.shmem_barrier_all()
require(shmem.shmem_long_atomic_fetch(counter, 0) == 200 * n, "atomic add")
require(shmem.shmem_long_atomic_fetch(ctypes.addressof(counter) + 8, 0) == 50 * n, "lock")

# The last process broadcasts.
sync = symmetric(64)
sync[:] = [-1] * 64  # SHMEM_SYNC_VALUE
shmem.shmem_barrier_all()
shmem.shmem_broadcast64(target, source, WORDS, n - 1, 0, 0, n, sync)
shmem.shmem_barrier_all()
require(target[0] == (previous * WORDS if me == n - 1 else (n - 1) * WORDS), "broadcast")

print(f"PE {me} of {n} is done", flush=True)
shmem.shmem_finalize()
