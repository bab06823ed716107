package nic_test

import (
	"os"
	"testing"
	"unsafe"

	"softroce/internal/ib"
	"softroce/mrtable"
)

// useCopiedMemory registers c's memory like that of another process, which the kernel copies.
func (c *client) useCopiedMemory() {
	c.t.Helper()
	p, err := mrtable.OpenProcess(os.Getpid(), -1)
	check(c.t, err)
	m, err := p.Memory(uint64(uintptr(unsafe.Pointer(&c.mem[0]))), uint64(len(c.mem)), allow)
	check(c.t, err)
	check(c.t, p.Close())
	c.mr, err = c.Context.RegMR(c.pd, m, 0, uint64(len(c.mem)), allow)
	check(c.t, err)
}

func BenchmarkCopiedWrite1MiB(b *testing.B)  { benchmarkCopied(b, ib.WRRDMAWrite, 1<<20, 4) }
func BenchmarkCopiedWrite64KiB(b *testing.B) { benchmarkCopied(b, ib.WRRDMAWrite, 1<<16, 16) }
func BenchmarkCopiedWrite64B(b *testing.B)   { benchmarkCopied(b, ib.WRRDMAWrite, 64, 64) }
func BenchmarkCopiedRead1MiB(b *testing.B)   { benchmarkCopied(b, ib.WRRDMARead, 1<<20, 4) }
func BenchmarkCopiedRead64B(b *testing.B)    { benchmarkCopied(b, ib.WRRDMARead, 64, 16) }
