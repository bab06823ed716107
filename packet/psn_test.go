package packet

import "testing"

func TestPSNArithmeticWrapsAt24Bits(t *testing.T) {
	for _, c := range []struct {
		a, b uint32
		diff int
	}{
		{5, 5, 0}, {6, 5, 1}, {5, 6, -1},
		{0, 0xffffff, 1}, {0xffffff, 0, -1}, {2, 0xfffffd, 5},
		{0x7fffff, 0, 1<<23 - 1}, // the largest distance forward
		{0x800000, 0, -1 << 23},  // one more is backward
		{0, 0x800000, -1 << 23},
	} {
		if got := PSNDiff(c.a, c.b); got != c.diff {
			t.Errorf("PSNDiff(%#x, %#x) = %d, want %d", c.a, c.b, got, c.diff)
		}
		if got := PSNAdd(c.b, c.diff); got != c.a {
			t.Errorf("PSNAdd(%#x, %d) = %#x, want %#x", c.b, c.diff, got, c.a)
		}
	}
}

func TestMessageUsesAtLeastOnePSN(t *testing.T) {
	for _, c := range []struct {
		n     uint32
		mtu   int
		count int
	}{
		{0, 256, 1}, {1, 256, 1}, {256, 256, 1}, {257, 256, 2}, {4096, 4096, 1}, {4097, 4096, 2},
		{1 << 31, 256, 1 << 23}, {1 << 31, 4096, 1 << 19}, {0xffffffff, 4096, 1 << 20},
	} {
		if got := PSNCount(c.n, c.mtu); got != c.count {
			t.Errorf("%d bytes at MTU %d: %d PSNs, want %d", c.n, c.mtu, got, c.count)
		}
	}
}
