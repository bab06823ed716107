// Package mrtable holds protection domains, memory regions and memory windows, checks
// every access against them, and moves the bytes.
//
// # A byte's way
//
//  1. A client registers memory: a Memory says how its bytes can be reached,
//     Table.Register gives them a place in the NIC's address space (IOVA), rights and a key.
//  2. A work request or a packet names a key, an address and a length. Table.Local or
//     Table.Remote answers with the Region or with the reason why not, before the first
//     byte moves.
//  3. IO.Read gathers, IO.Write scatters, IO.CompareSwap and IO.FetchAdd change eight
//     bytes. They check rights, bounds and life of the region once more: a mistake above
//     must not become a write to somebody else's memory.
//  4. IO.Flush carries out the writes that were queued, IO.Failed tells whose failed.
//  5. Table.Deregister makes a region unusable at once. What was handed out of it stays
//     readable until IO.Epoch was called twice.
//
// # Windows
//
// A bound Window is a Region of its own, a part of another one, with rights and a key of its
// own. It is dead at once when the window is invalidated, bound anew or deallocated: nothing
// begins under it any more. Writes that were queued before that are carried out, since they came
// before; the region behind it stays registered while a window is bound to it.
//
// # Two backings, and one between
//
// Mapped memory (MapFD, HeapMemory) is reached in place: no system call, no extra copy. The
// memory of another process (Process.Memory) is copied by the kernel, and because a system
// call costs as much as copying 4 KiB, writes are queued and one call carries the pieces of
// many packets and messages. What is mapped but may lose its pages is reached in the second way.
//
// Programs poll the last byte of an RDMA WRITE. So the final eight bytes of a message are
// stored after all others: by a later store in mapped memory, by a later element of the
// vector in another process's.
//
// # Why a client cannot make the daemon fault
//
// Touching a mapped page that the file no longer has, or for which no page can be had,
// raises SIGBUS, which would end the daemon. There is no handler for it; it cannot happen:
//
//   - The file cannot get shorter: MapFD takes only descriptors with F_SEAL_SHRINK, and
//     checks the size after it saw the seal. Only memfds can have it; files in a tmpfs or
//     hugetlbfs mount, which may be full, cannot. The kernel's own mount of memfds has no
//     limit.
//   - A hole in an ordinary memfd (sparse, or punched later) is filled by the page fault.
//     The kernel refuses that only under strict overcommit (vm.overcommit_memory 2); out
//     of memory, it kills by its own choice, as for any page of any program.
//   - Huge pages, and any page under strict overcommit, can run out; a punched hole even
//     gives back what mmap reserved. There MapFD adds F_SEAL_FUTURE_WRITE, with which no
//     hole can be punched, and then makes the kernel provide all pages, or fails. The
//     price: such a memfd cannot be mapped writable again, so it is registered once, as a
//     whole, and the client maps it before that.
//
// The memory of another process is never mapped. A bad page there is an error of the
// system call, and fails the work that named it.
//
// DMA buffers, and files that stand for them, come without a seal (OpenSelf, Process.MapGuarded). They are mapped, but never
// touched: the kernel copies between the mapping and the daemon's buffers, by process_vm_readv
// and process_vm_writev on the daemon itself. The mapping is the local side of the call, where
// any kind of page will do, also one of a device; the other side's have to be ordinary ones. A page that is missing is EFAULT, as in
// another process.
//
// One thing remains: a client may map memory whose page faults somebody serves in user
// space (FUSE; userfaultfd, where the administrator lets it handle the kernel's faults).
// A system call that reaches such a page waits for its server, and the engine with it.
package mrtable
