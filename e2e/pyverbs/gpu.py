"""A stand-in for a GPU, for rdma-core's tests of DMA buffers.

They allocate these from /dev/dri/renderD128, which a machine without a GPU has not got. With Debian's
pyverbs that goes wrong on every machine: it was built without the part that asks a GPU
(dmabuf_alloc_stub.c), and its DmaBufMR cannot keep a buffer that it has allocated itself (it calls
DmaBuf.add_ref, which is there for C alone). What DmaBufMR does with a descriptor that it was
given is sound. So here it is given one, of a memfd that nobody has sealed; the tests, and all that follows
from the descriptor on, are as they are.
"""
import mmap
import os

import pyverbs.mr


class Buffer(int):
    """The descriptor of a buffer, in the place of pyverbs.dmabuf.DmaBuf."""

    map_offset = 0  # where a program maps it, by drm_fd

    def __new__(cls, size, gpu=0, gtt=0):
        fd = os.memfd_create(f"gpu{gpu}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Drivers allocate whole pages.
        os.ftruncate(fd, (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE)
        return super().__new__(cls, fd)

    def __del__(self):
        os.close(self)

    @property
    def drm_fd(self):
        return int(self)


class DmaBufMR(pyverbs.mr.DmaBufMR):
    """That of pyverbs, with a Buffer where the caller has none."""

    def __init__(self, pd, length, access, dmabuf=None, offset=0, gpu=0, gtt=0):
        if dmabuf is None:
            dmabuf = Buffer(length + offset, gpu, gtt)
        super().__init__(pd, length, access, dmabuf=dmabuf, offset=offset)


def install(tests):
    """Gives a module of tests the GPU."""
    tests.DmaBuf, tests.DmaBufMR = Buffer, DmaBufMR
