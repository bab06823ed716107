# Python's multiprocessing with memory that is registered: children see what it was at the fork, and
# what they write stays theirs.
import ctypes
import mmap
import multiprocessing

SIZE = 1 << 20
verbs = ctypes.CDLL("libibverbs.so.1")
for name in "ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr":
    getattr(verbs, name).restype = ctypes.c_void_p


def register(memory):
    devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
    context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[0])))
    pd = ctypes.c_void_p(verbs.ibv_alloc_pd(context))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert verbs.ibv_reg_mr(pd, ctypes.c_void_p(address), ctypes.c_size_t(SIZE), 7)


def square(n):
    assert buf[n] == 7, buf[n]
    buf[: SIZE // 2] = bytes([n]) * (SIZE // 2)
    return n * n


buf = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
buf[:] = b"\7" * SIZE
register(buf)
assert "softroce-memory" in open("/proc/self/maps").read()
context = multiprocessing.get_context("fork")
with context.Pool(4, maxtasksperchild=1) as pool:
    assert pool.map(square, range(20), 1) == [n * n for n in range(20)]
process = context.Process(target=square, args=(3,))
process.start()
process.join()
assert process.exitcode == 0
assert buf[:] == b"\7" * SIZE
