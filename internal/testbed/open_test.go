package testbed

import (
	"errors"
	"strings"
	"testing"
)

// A live link has no NIC on this side, so it refuses what only a NIC has.
func TestOptionsOfNICsAreRefused(t *testing.T) {
	for option, link := range map[string]string{
		"pkeys":              "packet:lo,pkeys=0xffff",
		"guid":               "udp:lo,guid=0200:00ff:fe00:0001",
		"persona":            "udp:lo,persona=rxe",
		"numa":               "udp:lo,persona=connectx-7,numa=0",
		"rate":               "packet:lo,rate=25G",
		"delay":              "xdp:lo,delay=5us",
		"addresses in VLANs": "dgram:127.0.0.1:1,127.0.0.1:2,10.0.0.1/8@5",
	} {
		c, err := OpenLiveLink(link, nil)
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, ErrLink) || option != "numa" && !strings.Contains(err.Error(), "a NIC has "+option) {
			t.Errorf("%s: %v", link, err)
		}
	}
}
