package check_test

import (
	"testing"

	"softroce/capture"
	"softroce/internal/check"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// softroce keeps to the rules also if packets are lost at either end.
func TestSoftroceBreaksNoRule(t *testing.T) {
	for _, faults := range []string{"", "drop send every 7", "drop receive every 5"} {
		rec := capture.NewRecorder()
		f := verbstest.New(t, verbstest.WithCapture(rec), verbstest.WithFaults(0, faults))
		x, y := verbstest.EndpointConfig{Options: func(o *verbs.ConnectOptions) { o.Timeout = 8 }}.Connect(t, f.Open(0), f.Open(1))
		for i := range uint64(20) {
			y.Recv(i, 0, 6000)
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 6000)})
			x.Completion()
			y.Completion()
		}
		f.Close()
		ps := rec.Packets()
		for i := range ps {
			ps[i].No = i + 1
		}
		if r := check.Packets(ps); r.Total != 0 || r.RoCE < 40 || r.Connections != 1 || r.Messages != 20 || len(r.NotJudged) > 0 {
			t.Errorf("faults %q:\n%v", faults, r)
		}
	}
}
