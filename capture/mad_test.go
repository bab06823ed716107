package capture

import (
	"bytes"
	"strings"
	"testing"
)

func TestDecodeNamesCMMessages(t *testing.T) {
	for _, c := range []struct {
		file string
		json bool
		want []string
	}{
		{"cm-reject", false, []string{
			" mad.message=REQ mad.tid=0x29df68100 mad.local_id=0x81f69d mad.service_id=0x1061f3f mad.port_space=\"TCP\" mad.port=7999 mad.src=10.77.0.12:58327 ",
			" mad.message=REJ mad.tid=0x29df68100 mad.local_id=0x0 mad.remote_id=0x81f69d mad.about=\"REQ\" mad.reason=8 mad.reason_name=\"invalid service ID\""}},
		{"cm-reject", true, []string{`"message":"REJ","fields":{"about":"REQ","local_id":0,"reason":8,`, `"service_id":"0x1061f3f"`}},
		{"cm-udaddy", false, []string{" mad.message=SIDR_REP mad.tid=0x2e894264d mad.request_id=0x4d2694e8 mad.status=0 mad.qpn=0x37 "}},
	} {
		r, err := Open("../pcap-fixtures/" + c.file + ".pcap")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := Decode(&out, r, DecodeOptions{JSON: c.json}); err != nil {
			t.Fatal(err)
		}
		r.Close()
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", c.file, want, out.String())
			}
		}
	}
}
