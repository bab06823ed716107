"""Replaces the GPU in rdma-core's tests of DMA buffers.

The tests allocate buffers from /dev/dri/renderD128, which a machine without a GPU does not have.
Debian's pyverbs fails on every machine: it is built without GPU support (dmabuf_alloc_stub.c), and
its DmaBufMR cannot hold a buffer that it has allocated (it calls DmaBuf.add_ref, which exists in C
only). DmaBufMR works with a descriptor that the caller passes. So this passes the descriptor of an
unsealed memfd. The tests, and everything behind the descriptor, are unchanged.
"""
import mmap
import os

import pyverbs.mr


class Buffer(int):
    """The descriptor of a buffer. Replaces pyverbs.dmabuf.DmaBuf."""

    map_offset = 0  # the offset at which a program maps it, on drm_fd

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
    """pyverbs' DmaBufMR with a new Buffer if the caller passes none."""

    def __init__(self, pd, length, access, dmabuf=None, offset=0, gpu=0, gtt=0):
        if dmabuf is None:
            dmabuf = Buffer(length + offset, gpu, gtt)
        super().__init__(pd, length, access, dmabuf=dmabuf, offset=offset)


def install(tests):
    """Installs the replacement in a module of tests."""
    tests.DmaBuf, tests.DmaBufMR = Buffer, DmaBufMR
