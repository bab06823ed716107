// Package e2e holds the end-to-end tests: the softroce daemon as a process, unmodified programs,
// the Linux kernel's Soft-RoCE as the peer, and real links between them. The tests are grouped by
// file name:
//
//   - programs_*: stock programs of the distribution on softroce
//   - kernel_*: softroce and the kernel's NIC
//   - links_*: links in a guest whose kernel or NIC has what the host's lacks
//   - daemon_*: recorded and scripted peers of a daemon over a veth pair
//   - lifecycle_*, faults_*: processes that end or are killed, packets that are lost, and clients
//     of other users that attack the daemon
//   - packaging_*: the Debian package, and clients in containers
//
// All are in one package because they share the virtual machines of a run, which take seconds to
// boot. What they share otherwise is in package harness. Tests run in parallel, except that those
// which need the same machine wait for each other: see harness.Exclusive.
//
// The tests need root, for network namespaces and the taps of QEMU, and install the packages that
// they need where they can. A test that cannot run is skipped and logs why; `make test` lists
// those, and they are failures where CI=true.
//
// The kernel's NIC runs in a virtual machine: see e2e/rxelab. $SOFTROCE_E2E_KERNEL is the Debian
// package of its kernel; the default is linux-image-amd64 (6.1).
package e2e
