# Python's multiprocessing with memory that is registered, by the start method of argument 1:
# children of a fork see what it was then, what they write stays theirs, and each process can
# register its own. With argument 2, a second thread registers memory meanwhile. It asks the test
# how the daemon accesses regions.
import ctypes
import mmap
import multiprocessing
import sys
import threading

SIZE = 1 << 20
verbs = ctypes.CDLL("libibverbs.so.1")
for name in "ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr":
    getattr(verbs, name).restype = ctypes.c_void_p


def open_pd():
    devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
    context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[0])))
    return ctypes.c_void_p(verbs.ibv_alloc_pd(context))


def anonymous():
    return mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def register(pd, memory):
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mr = verbs.ibv_reg_mr(pd, ctypes.c_void_p(address), ctypes.c_size_t(SIZE), 7)
    assert mr
    return mr, address


def square(n):
    assert buf[n] == 7, buf[n]
    buf[: SIZE // 2] = bytes([n]) * (SIZE // 2)
    return n * n


def register_own():
    return register(open_pd(), buf)[1]


def expect_mapped(address, whose):
    print(hex(address), f"mapped ({whose})", flush=True)
    input()


def register_repeatedly(pd, stop):
    memory = anonymous()
    while not stop.is_set():
        mr, _ = register(pd, memory)
        assert not verbs.ibv_dereg_mr(ctypes.c_void_p(mr))


def use(context):
    with context.Pool(4, maxtasksperchild=1) as pool:
        assert pool.map(square, range(20), 1) == [n * n for n in range(20)]
    process = context.Process(target=square, args=(3,))
    process.start()
    process.join()
    assert process.exitcode == 0
    with context.Pool(1) as pool:
        expect_mapped(pool.apply(register_own), "the child's")
    assert buf[:] == b"\7" * SIZE


buf = anonymous()
buf[:] = b"\7" * SIZE
if __name__ == "__main__":
    pd, stop = open_pd(), threading.Event()
    expect_mapped(register(pd, buf)[1], "the parent's")
    other = threading.Thread(target=register_repeatedly, args=(pd, stop))
    if len(sys.argv) > 2:
        other.start()
    try:
        use(multiprocessing.get_context(sys.argv[1]))
    finally:
        stop.set()
    if len(sys.argv) > 2:
        other.join()
