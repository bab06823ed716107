package nic_test

import (
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/transport"
)

// The L_Keys of a receive are valid in the protection domain of its SRQ, and R_Keys in that of the
// queue pair.
func TestKeysOfQueuePairAndItsSRQ(t *testing.T) {
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		for _, c := range []struct {
			name   string
			op     ib.WROpcode
			ofSRQ  bool // the key of the target is of the SRQ's domain, not of the queue pair's
			status ib.WCStatus
			remote ib.WCStatus // RC
		}{
			{"receive into memory of the SRQ's domain", ib.WRSend, true, ib.WCSuccess, ib.WCSuccess},
			{"receive into memory of the QP's domain", ib.WRSend, false, ib.WCLocProtErr, ib.WCRemOpErr},
			{"WRITE to memory of the QP's domain", ib.WRRDMAWriteWithImm, false, ib.WCSuccess, ib.WCSuccess},
			{"WRITE to memory of the SRQ's domain", ib.WRRDMAWriteWithImm, true, ib.WCLocAccessErr, ib.WCRemAccessErr},
		} {
			w := newTestFabric(t)
			x, far := w.client(w.nic(1)).qpOf(kind, smallCaps), w.client(w.nic(2))
			other, err := far.Context.AllocPD()
			check(t, err)
			key := far.mr
			if c.ofSRQ {
				key, err = far.Context.RegMR(other, mrtable.HeapMemory(far.mem), 0, uint64(len(far.mem)), allow)
				check(t, err)
			}
			srq, err := far.CreateSRQ(nic.SRQInit{PD: other, MaxWR: 4, MaxSGE: 1})
			check(t, err)
			y := far.create(nic.QPInit{Type: kind, PD: far.pd, SendCQ: far.cq.CQ, RecvCQ: far.cq.CQ, SRQ: srq.SRQ, Caps: smallCaps})
			x.connect(1024, y)
			y.connect(1024, x)
			srq.PostRecv(1, []transport.SGE{{Length: 100, LKey: key.LKey()}})
			x.post(transport.SendWR{ID: 2, Opcode: c.op, RKey: key.RKey(), SGEs: x.sge(0, 100)})
			w.run(1e9)
			if kind == ib.QPTypeRC {
				if l := x.cq.PollAll(); len(l) != 1 || l[0].Status != c.remote {
					t.Errorf("%s: completions %+v", c.name, l)
				}
			}
			l := far.cq.PollAll()
			if kind == ib.QPTypeUC && c.status == ib.WCLocAccessErr {
				if len(l) != 0 { // the WRITE is dropped
					t.Errorf("%s, UC: completions %+v", c.name, l)
				}
			} else if len(l) != 1 || l[0].Status != c.status {
				t.Errorf("%s: completions %+v of the receiver", c.name, l)
			}
		}
	}
}
