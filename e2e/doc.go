// Package e2e holds the end-to-end tests: the softroce daemon as a process, real programs
// and the Linux kernel's Soft-RoCE as its peer, real links between them.
//
// The tests need root, for network namespaces and QEMU's taps, and install the packages
// that they need where they can. A test that cannot run here is skipped and says why;
// `make test` lists those, and where CI=true they count as failures.
//
// Tests run side by side, one in each lane: see harness.
//
// The kernel peer runs in a virtual machine, see e2e/rxelab. $SOFTROCE_E2E_KERNEL is
// the Debian package of its kernel, linux-image-amd64 (6.1) if it is not set.
package e2e
