package check

import (
	"testing"
	"time"

	"softroce/capture"
)

// goBack inserts the last four packets before index i there again, a microsecond apart from each
// other and from those.
func (t *recording) goBack(i int) {
	for k := range 4 {
		t.insert(i+k, t.rs[i-4+k])
	}
	for k := i - 4; k < i+4; k++ {
		t.rs[k].Time = t.rs[i-5].Time.Add(time.Duration(k-i+5) * time.Microsecond)
	}
	t.number()
}

// The request that the NAK of packet 39 asks for was delayed, and is accepted after all. The one
// that is two PSNs later is lost, so another NAK follows. The requester receives both NAKs late,
// and goes back for each, the second time soon after it has sent the PSN of the second one again.
func TestRequesterGoesBackForEachNAK(t *testing.T) {
	r := load(t, "loss-write-resp")
	r.insert(39, r.rs[38])
	r.edit(39, func(p *capture.Packet) {
		p.PSN += 2
		p.AETH.MSN++ // the message ends in between
	})
	r.goBack(46) // after packets 41 to 46, which follow the first NAK
	if nak, p := r.parse(39), r.parse(46); p.PSN != nak.PSN {
		t.Fatalf("packet 47 has PSN %d, the second NAK %d", p.PSN, nak.PSN)
	}
	if report := r.judge(); report.Total != 0 || report.Connections == 0 {
		t.Errorf("each NAK is followed once:\n%v", report)
	}
	r.goBack(50)
	if report := r.judge(); report.Total != 1 || report.Violations[0].Rule != ruleRetryInterval.ID {
		t.Errorf("the second NAK is followed twice:\n%v", report)
	}
}
