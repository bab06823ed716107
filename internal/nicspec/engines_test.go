package nicspec

import (
	"strings"
	"testing"
)

func TestEnginesOfNIC(t *testing.T) {
	for text, want := range map[string]string{ // part of the error of Parse or CanShare; "": none
		"a=packet:eth0,engines=4":                                      "",
		"a=udp:eth0,engines=2":                                         "",
		"a=fabric:192.0.2.1/24,engines=32":                             "",
		"a=auto:eth0,engines=2":                                        "",
		"a=packet:eth0,engines=0":                                      `engines "0": want 1 to 32`,
		"a=packet:eth0,engines=33":                                     `engines "33": want 1 to 32`,
		"a=packet:eth0,engines=two":                                    `engines "two": want 1 to 32`,
		"a=packet:eth0,engines=2,engines=2":                            "engines is given twice",
		"a=xdp:eth0,engines=2":                                         "",
		"a=dgram:127.0.0.1:5001,127.0.0.1:5000,192.0.2.1/24,engines=2": "a NIC on dgram has one engine",
		"a=packet:eth0,rate=1G,engines=2":                              "a NIC with rate=RATE has one engine",
		"a=fabric:192.0.2.1/24,delay=1ms,engines=2":                    "",
	} {
		n, err := Parse(text)
		if err == nil {
			if back := n.String(); want == "" && back != text {
				t.Errorf("%s: the text form is %s", text, back)
			}
			err = n.CanShare()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
