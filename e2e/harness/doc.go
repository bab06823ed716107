// Package harness is what the end-to-end tests share: the binary under test, daemons as processes,
// network namespaces, the virtual machines with the kernel's Soft-RoCE, and endpoints at which a
// test runs a program without knowing whose RDMA NIC it uses.
//
// Everything that a function of this package creates is removed when the test that called it ends.
// What a killed test run left behind is removed by the next run.
//
// Relative paths in this package are relative to e2e/, the working directory of its tests.
package harness
