// Package mrtable manages protection domains, memory regions and memory windows, checks every
// access against them, and copies the data.
//
// # The path of a byte
//
//  1. A client registers memory: a Memory says how to access its bytes. Table.Register assigns
//     an address range (IOVA), access rights and a key.
//  2. A work request or a packet names a key, an address and a length. Before the first byte is
//     copied, Table.Local or Table.Remote returns the Region or the reason for rejecting it.
//  3. IO.Read and IO.QueueRead gather, IO.Write scatters, IO.CompareSwap and IO.FetchAdd modify
//     eight bytes. They check rights, bounds and liveness of the region again: an error in the
//     caller must not become a write to another client's memory.
//  4. IO.Flush carries out what is queued, a Batch for each Client. IO.Failed reports the tags of
//     writes that failed, IO.Results what queued atomic operations found.
//  5. Table.Deregister invalidates a region at once. Slices that were read from it stay valid until
//     the second IO.Epoch.
//
// # Windows
//
// A bound Window has a Region of its own: a part of another one, with its own rights and key. The
// Region becomes invalid as soon as the window is invalidated, bound again or deallocated, and no
// new access uses it. Writes queued before that are executed. The underlying region cannot be
// deregistered while a window is bound to it.
//
// # Several engines
//
// The engines of one NIC share a Table, and each has an IO (shared.go). Registration and
// deregistration exclude them; lookups take no lock, because work requests of any engine may bind
// and invalidate windows meanwhile.
//
// # Three kinds of memory
//
// Mapped memory (Files.Map, HeapMemory) is accessed in place, without a system call or an extra
// copy.
//
// The kernel copies to and from the memory of another process (Process.Memory). Since a system call
// costs as much as copying 4 KiB, reads and writes are queued, and one call handles the pieces of
// many packets and messages. No other method makes a system call.
//
// Mapped memory that may lose its pages (Files.MapGuarded) is also copied by the kernel.
//
// Programs poll the last byte of an RDMA WRITE. The final eight bytes of a message are therefore
// stored after all others: by a later store in mapped memory, by a later vector element in another
// process's memory.
//
// All registrations of a file by one client share a mapping of the whole file (Files), because the
// kernel bounds the mappings of a process. Unmapping can take long, so a goroutine does that, and
// not the engine that ends the last use.
//
// # Why a client cannot make the daemon fault
//
// An access to a mapped page that the file no longer has, or that cannot be allocated, raises
// SIGBUS, which would terminate the daemon. There is no handler, because it cannot happen:
//
//   - The file cannot shrink: Files.Map accepts only descriptors with F_SEAL_SHRINK, and checks
//     the size after it has seen the seal. Only memfds can have the seal, so files in a tmpfs or
//     hugetlbfs mount, which may be full, are excluded. The kernel's internal mount of memfds has
//     no size limit.
//   - A page fault fills a hole in an ordinary memfd that is sparse. The kernel fails it only under
//     strict overcommit (vm.overcommit_memory 2). Out of memory, it kills a process of its choice,
//     as for any page of any program.
//   - Huge pages, and any page under strict overcommit, can run out. For these Files.Map makes the
//     kernel allocate the pages of the region, or fails. No hole can be punched later.
//
// The memory of another process is never mapped. A missing page there is an error of the system
// call, which fails the affected work request.
//
// DMA buffers, and files used in their place, have no seal (OpenSelf, Files.MapGuarded). They are
// mapped but never touched by the daemon's own code: process_vm_readv and process_vm_writev on the
// daemon itself copy between the mapping and the daemon's buffers. The mapping is the local side of
// the call, which may be any kind of page, including device memory; the remote side must be
// ordinary pages. A missing page is EFAULT, as in another process.
//
// # Why a client cannot make the daemon wait
//
// A client may map memory whose page faults are served in user space (FUSE; userfaultfd), or hold
// the lock of its address space. A system call that accesses such memory may never return. Only
// Batch.Run makes these calls, and it touches nothing else of the IO: the IO's owner may leave a
// batch to the thread that is in it, and go on with other clients after Detach, or give it to
// another thread after Copy. Until Settle, what would be queued for the batch's client is refused.
//
// Mapped memory is accessed without a system call, so a page fault in it must not wait for a client
// either. While a hole is punched in a file (fallocate, MADV_REMOVE), the kernel keeps page faults
// there waiting, however long that takes or its thread waits for a processor, and the client could
// punch the next one at once. So Files.Map adds F_SEAL_FUTURE_WRITE, with which the kernel refuses
// to punch holes. The seal also refuses new writable mappings. So the client must have mapped the
// file before, and all its registrations share the daemon's mapping as long as one of them, or
// Files.Hold, keeps it. Files that must not be sealed are accessed by the kernel
// (Files.MapGuarded).
//
// What remains is the first access to a page that neither the client nor Files.Map has allocated,
// and the moment in which the client has the kernel replace pages by a huge one (MADV_COLLAPSE).
// Both happen once for each page, and no seal prevents them.
package mrtable
