package check

import (
	"strings"
	"testing"
)

// The report answers which packets were sent again, and why.
func TestPacketsSentAgainHaveACause(t *testing.T) {
	for _, c := range []struct {
		file string
		want map[Cause]SentAgain
		text []string
	}{
		{"pp-rc-mtu1024", nil, nil},
		{"loss-write-resp", map[Cause]SentAgain{CauseNAK: {1, 6}}, []string{"sent again: 6 packets after 1 sequence NAK\n", "lost: at least 1 packet after the point of capture\n"}},
		{"vp-rnr-multi", map[Cause]SentAgain{CauseRNR: {8, 24}}, []string{"QP 0x4b: RNR NAK, packet 4, 28.389ms before\n"}},
		{"loss-read-req", map[Cause]SentAgain{CauseResponse: {6, 24}}, []string{
			"packets 34 to 37, 4 packets from PSN 9316741, to 10.77.0.12 > 10.77.0.11 QP 0x5b: the response to packet 18 was lost, at least in part\n"}},
		{"vp-no-answer", map[Cause]SentAgain{CauseTimeout: {3, 9}}, nil},
		{"loss-pp-rc", map[Cause]SentAgain{CauseNAK: {1, 2}, CauseTimeout: {2, 4}}, []string{"sent again: 2 packets after 1 sequence NAK, 4 packets after 2 timeouts\n"}},
	} {
		r := load(t, c.file).judge()
		for _, cause := range causes {
			if r.SentAgain[cause] != c.want[cause] {
				t.Errorf("%s: sent again after %s: %v, want %v\n%v", c.file, cause.noun(), r.SentAgain[cause], c.want[cause], r)
			}
		}
		for _, line := range c.text {
			if !strings.Contains(r.String(), line) {
				t.Errorf("%s: the report lacks %q\n%v", c.file, line, r)
			}
		}
	}
}
