package packet

import "testing"

func TestRNRTimersMatchSpecification(t *testing.T) {
	microseconds := [32]float64{
		655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
		2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
	}
	for code, us := range microseconds {
		if got := RNRTimer(uint8(code)); got != int64(us*1000) {
			t.Errorf("code %d: %d ns, want %g µs", code, got, us)
		}
	}
}

func TestCreditCodes(t *testing.T) {
	for code, n := range map[uint8]int{0: 0, 1: 1, 3: 3, 4: 4, 5: 6, 6: 8, 7: 12, 8: 16, 19: 768, 30: 32768, 31: -1} {
		if got := Credits(code); got != n {
			t.Errorf("code %d: %d credits, want %d", code, got, n)
		}
	}
	for n, code := range map[int]uint8{-1: 0, 0: 0, 4: 4, 5: 4, 6: 5, 7: 5, 767: 18, 32767: 29, 32768: 30, 1 << 30: 30} {
		if got := CreditCode(n); got != code {
			t.Errorf("%d WQEs: code %d, want %d", n, got, code)
		}
	}
	for code := uint8(0); code < CreditsUnlimited; code++ {
		if got := CreditCode(Credits(code)); got != code {
			t.Errorf("code %d round-trips as %d", code, got)
		}
	}
	for n := range 2 * Credits(CreditsUnlimited-1) {
		code := CreditCode(n)
		if Credits(code) > n || code+1 < CreditsUnlimited && Credits(code+1) <= n {
			t.Errorf("%d WQEs: code %d, which grants %d", n, code, Credits(code))
		}
	}
}

func TestSyndromeClassesAreDisjoint(t *testing.T) {
	for _, c := range []struct {
		s             Syndrome
		ack, rnr, nak bool
		text          string
	}{
		{0x00, true, false, false, "ACK(credits 0)"},
		{0x1f, true, false, false, "ACK"},
		{0x2e, false, true, false, "RNR NAK(timer 14)"},
		{0x07, true, false, false, "ACK(credits 12)"},
		{0x40, false, false, false, "Syndrome(0x40)"},
		{NAKSequence, false, false, true, "NAK(PSN sequence error)"},
		{NAKInvalidRequest, false, false, true, "NAK(invalid request)"},
		{NAKRemoteAccess, false, false, true, "NAK(remote access error)"},
		{NAKRemoteOperational, false, false, true, "NAK(remote operational error)"},
		{NAKInvalidRD, false, false, true, "NAK(invalid RD request)"},
		{0x7f, false, false, true, "Syndrome(0x7f)"},
		{0x80, false, false, false, "Syndrome(0x80)"},
		{0xff, false, false, false, "Syndrome(0xff)"},
	} {
		if c.s.IsACK() != c.ack || c.s.IsRNR() != c.rnr || c.s.IsNAK() != c.nak || c.s.String() != c.text {
			t.Errorf("%#02x: ACK %v, RNR %v, NAK %v, String %v", uint8(c.s), c.s.IsACK(), c.s.IsRNR(), c.s.IsNAK(), c.s)
		}
	}
}
