package transport

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// maskNames are the attribute names of the table below.
var maskNames = map[string]ib.QPAttrMask{
	"cur": ib.QPMaskCurState, "notify": ib.QPMaskEnSQDNotify, "access": ib.QPMaskAccess, "pkey": ib.QPMaskPKeyIndex, "port": ib.QPMaskPort,
	"qkey": ib.QPMaskQKey, "av": ib.QPMaskAV, "mtu": ib.QPMaskPathMTU, "timeout": ib.QPMaskTimeout, "retry": ib.QPMaskRetryCount,
	"rnr": ib.QPMaskRNRRetry, "rqpsn": ib.QPMaskRQPSN, "rd": ib.QPMaskMaxRDAtomic, "alt": ib.QPMaskAltPath, "minrnr": ib.QPMaskMinRNRTimer,
	"sqpsn": ib.QPMaskSQPSN, "destrd": ib.QPMaskMaxDestRDAtomic, "mig": ib.QPMaskPathMigState, "dest": ib.QPMaskDestQPN,
}

func parseMask(t *testing.T, names string) (m ib.QPAttrMask) {
	for n := range strings.FieldsSeq(names) {
		if maskNames[n] == 0 {
			t.Fatalf("attribute %q", n)
		}
		m |= maskNames[n]
	}
	return m
}

// modifyTable is IBTA 11.2.5.2 and annex A14 as verbs programs see it: for each transition the
// required and the optional attributes.
var modifyTable = []struct {
	kind      string // RC, UC, UD, XRC_INI, XRC_TGT
	from, to  ib.QPState
	must, may string
}{
	{"RC", ib.QPSReset, ib.QPSInit, "pkey port access", ""},
	{"RC", ib.QPSInit, ib.QPSInit, "", "pkey port access"},
	{"RC", ib.QPSInit, ib.QPSRTR, "av mtu dest rqpsn destrd minrnr", "alt access pkey"},
	{"RC", ib.QPSRTR, ib.QPSRTS, "timeout retry rnr sqpsn rd", "cur alt access minrnr mig"},
	{"RC", ib.QPSRTS, ib.QPSRTS, "", "cur access alt mig minrnr"},
	{"RC", ib.QPSRTS, ib.QPSSQD, "", "notify"},
	{"RC", ib.QPSSQD, ib.QPSRTS, "", "cur alt access minrnr mig"},
	{"RC", ib.QPSSQD, ib.QPSSQD, "", "port av mtu timeout retry rnr rd destrd alt access pkey minrnr mig"},

	{"UC", ib.QPSReset, ib.QPSInit, "pkey port access", ""},
	{"UC", ib.QPSInit, ib.QPSInit, "", "pkey port access"},
	{"UC", ib.QPSInit, ib.QPSRTR, "av mtu dest rqpsn", "alt access pkey"},
	{"UC", ib.QPSRTR, ib.QPSRTS, "sqpsn", "cur alt access mig"},
	{"UC", ib.QPSRTS, ib.QPSRTS, "", "cur access alt mig"},
	{"UC", ib.QPSRTS, ib.QPSSQD, "", "notify"},
	{"UC", ib.QPSSQD, ib.QPSRTS, "", "cur alt access mig"},
	{"UC", ib.QPSSQD, ib.QPSSQD, "", "av mtu alt access pkey mig"},
	{"UC", ib.QPSSQE, ib.QPSRTS, "", "cur access"},

	{"UD", ib.QPSReset, ib.QPSInit, "pkey port qkey", ""},
	{"UD", ib.QPSInit, ib.QPSInit, "", "pkey port qkey"},
	{"UD", ib.QPSInit, ib.QPSRTR, "", "pkey qkey"},
	{"UD", ib.QPSRTR, ib.QPSRTS, "sqpsn", "cur qkey"},
	{"UD", ib.QPSRTS, ib.QPSRTS, "", "cur qkey"},
	{"UD", ib.QPSRTS, ib.QPSSQD, "", "notify"},
	{"UD", ib.QPSSQD, ib.QPSRTS, "", "cur qkey"},
	{"UD", ib.QPSSQD, ib.QPSSQD, "", "pkey qkey"},
	{"UD", ib.QPSSQE, ib.QPSRTS, "", "cur qkey"},

	{"XRC_INI", ib.QPSReset, ib.QPSInit, "pkey port access", ""},
	{"XRC_INI", ib.QPSInit, ib.QPSInit, "", "pkey port access"},
	{"XRC_INI", ib.QPSInit, ib.QPSRTR, "av mtu dest rqpsn", "alt access pkey"},
	{"XRC_INI", ib.QPSRTR, ib.QPSRTS, "timeout retry rnr sqpsn rd", "cur alt access mig"},
	{"XRC_INI", ib.QPSRTS, ib.QPSRTS, "", "cur access alt mig"},
	{"XRC_INI", ib.QPSRTS, ib.QPSSQD, "", "notify"},
	{"XRC_INI", ib.QPSSQD, ib.QPSRTS, "", "cur alt access mig"},
	{"XRC_INI", ib.QPSSQD, ib.QPSSQD, "", "port av mtu timeout retry rnr rd alt access pkey mig"},

	{"XRC_TGT", ib.QPSReset, ib.QPSInit, "pkey port access", ""},
	{"XRC_TGT", ib.QPSInit, ib.QPSInit, "", "pkey port access"},
	{"XRC_TGT", ib.QPSInit, ib.QPSRTR, "av mtu dest rqpsn destrd minrnr", "alt access pkey"},
	{"XRC_TGT", ib.QPSRTR, ib.QPSRTS, "timeout sqpsn", "cur alt access minrnr mig"},
	{"XRC_TGT", ib.QPSRTS, ib.QPSRTS, "", "cur access alt mig minrnr"},
	{"XRC_TGT", ib.QPSRTS, ib.QPSSQD, "", "notify"},
	{"XRC_TGT", ib.QPSSQD, ib.QPSRTS, "", "cur alt access minrnr mig"},
	{"XRC_TGT", ib.QPSSQD, ib.QPSSQD, "", "port av mtu timeout destrd alt access pkey minrnr mig"},
}

// inState returns a queue pair in a state.
func inState(t *testing.T, kind string, s ib.QPState) *side {
	c := Config{QPN: 17, SendDepth: 4, MaxSendSGE: 1, PortMTU: 4096}
	switch kind {
	case "RC":
		c.Service = packet.RC
	case "UC":
		c.Service = packet.UC
	case "UD":
		c.Service = packet.UD
	case "XRC_INI":
		c.Service, c.Role = packet.XRC, Initiator
	case "XRC_TGT":
		c.Service, c.Role, c.Domain = packet.XRC, Target, emptyDomain{}
	}
	x := newSide(t, 17, 64)
	c.Recv = &x.rq
	q, err := New(c)
	must(t, err)
	q.state = s
	x.qp = q
	return x
}

type emptyDomain struct{ XRCDomain }

// validAttr has every attribute in range.
var validAttr = ib.QPAttr{PathMTU: 1024, RQPSN: 1, SQPSN: 2, DestQPN: 3, MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 5, Timeout: 6,
	RetryCount: 7, RNRRetry: 7}

// tryModify attempts a transition with a mask.
func tryModify(t *testing.T, kind string, from, to ib.QPState, mask ib.QPAttrMask) error {
	x := inState(t, kind, from)
	a := validAttr
	a.State, a.CurState = to, from
	err := x.qp.Modify(&x.env, &a, mask|ib.QPMaskState)
	if want := to; err == nil && x.qp.State() != want || err != nil && x.qp.State() != from {
		t.Errorf("%s, %v to %v with %#x: in %v after %v", kind, from, to, uint32(mask), x.qp.State(), err)
	}
	return err
}

func TestModifyRequiresExactlyTheAttributesOfTheTransition(t *testing.T) {
	all := ib.QPAttrMask(0)
	for _, m := range maskNames {
		all |= m
	}
	ways := map[string]bool{}
	for _, row := range modifyTable {
		ways[fmt.Sprint(row.kind, row.from, row.to)] = true
		needs, may := parseMask(t, row.must), parseMask(t, row.may)
		for bit := ib.QPAttrMask(1); bit != 0 && bit <= all; bit <<= 1 {
			switch {
			case bit&all == 0 || bit == ib.QPMaskCurState && may&bit == 0:
			case needs&bit != 0:
				if err := tryModify(t, row.kind, row.from, row.to, needs&^bit); !errors.Is(err, ErrAttribute) {
					t.Errorf("%s, %v to %v without %#x: %v", row.kind, row.from, row.to, uint32(bit), err)
				}
			case may&bit != 0:
				if err := tryModify(t, row.kind, row.from, row.to, needs|bit); err != nil {
					t.Errorf("%s, %v to %v with %#x: %v", row.kind, row.from, row.to, uint32(bit), err)
				}
			default:
				if err := tryModify(t, row.kind, row.from, row.to, needs|bit); !errors.Is(err, ErrAttribute) {
					t.Errorf("%s, %v to %v with the extra %#x: %v", row.kind, row.from, row.to, uint32(bit), err)
				}
			}
		}
		if err := tryModify(t, row.kind, row.from, row.to, needs|may); err != nil {
			t.Errorf("%s, %v to %v with all %d attributes: %v", row.kind, row.from, row.to, bits.OnesCount32(uint32(needs|may)), err)
		}
	}
	for _, kind := range []string{"RC", "UC", "UD", "XRC_INI", "XRC_TGT"} {
		for from := ib.QPSReset; from <= ib.QPSErr; from++ {
			for to := ib.QPSReset; to <= ib.QPSErr; to++ {
				err := tryModify(t, kind, from, to, 0)
				switch {
				case to == ib.QPSReset, to == ib.QPSErr && from != ib.QPSReset:
					if err != nil {
						t.Errorf("%s, %v to %v: %v", kind, from, to, err)
					}
					if err := tryModify(t, kind, from, to, ib.QPMaskAccess); !errors.Is(err, ErrAttribute) {
						t.Errorf("%s, %v to %v with access flags: %v", kind, from, to, err)
					}
				case !ways[fmt.Sprint(kind, from, to)] && !errors.Is(err, ErrTransition):
					t.Errorf("%s, %v to %v, an undefined transition: %v", kind, from, to, err)
				}
			}
		}
		x := inState(t, kind, ib.QPSRTS)
		a := validAttr
		a.State, a.CurState = ib.QPSRTS, ib.QPSSQD
		if err := x.qp.Modify(&x.env, &a, ib.QPMaskState|ib.QPMaskCurState); !errors.Is(err, ErrTransition) {
			t.Errorf("%s in RTS with cur_state SQD: %v", kind, err)
		}
	}
}

func TestModifyRejectsAttributesOutOfRange(t *testing.T) {
	for name, c := range map[string]struct {
		from, to ib.QPState
		mask     ib.QPAttrMask
		set      func(*ib.QPAttr)
	}{
		"path MTU 0":       {ib.QPSInit, ib.QPSRTR, 0, func(a *ib.QPAttr) { a.PathMTU = 0 }},
		"path MTU 1000":    {ib.QPSInit, ib.QPSRTR, 0, func(a *ib.QPAttr) { a.PathMTU = 1000 }},
		"path MTU 8192":    {ib.QPSInit, ib.QPSRTR, 0, func(a *ib.QPAttr) { a.PathMTU = 8192 }},
		"RQ PSN":           {ib.QPSInit, ib.QPSRTR, 0, func(a *ib.QPAttr) { a.RQPSN = 1 << 24 }},
		"QPN":              {ib.QPSInit, ib.QPSRTR, 0, func(a *ib.QPAttr) { a.DestQPN = 1 << 24 }},
		"max_dest_rd":      {ib.QPSInit, ib.QPSRTR, 0, func(a *ib.QPAttr) { a.MaxDestRDAtomic = MaxRDAtomic + 1 }},
		"min_rnr_timer":    {ib.QPSInit, ib.QPSRTR, 0, func(a *ib.QPAttr) { a.MinRNRTimer = 32 }},
		"SQ PSN":           {ib.QPSRTR, ib.QPSRTS, 0, func(a *ib.QPAttr) { a.SQPSN = 1 << 24 }},
		"timeout":          {ib.QPSRTR, ib.QPSRTS, 0, func(a *ib.QPAttr) { a.Timeout = 32 }},
		"retry_cnt":        {ib.QPSRTR, ib.QPSRTS, 0, func(a *ib.QPAttr) { a.RetryCount = 8 }},
		"rnr_retry":        {ib.QPSRTR, ib.QPSRTS, 0, func(a *ib.QPAttr) { a.RNRRetry = 8 }},
		"max_rd_atomic":    {ib.QPSRTR, ib.QPSRTS, 0, func(a *ib.QPAttr) { a.MaxRDAtomic = MaxRDAtomic + 1 }},
		"timeout in SQD":   {ib.QPSSQD, ib.QPSSQD, ib.QPMaskTimeout, func(a *ib.QPAttr) { a.Timeout = 32 }},
		"path MTU in SQD":  {ib.QPSSQD, ib.QPSSQD, ib.QPMaskPathMTU, func(a *ib.QPAttr) { a.PathMTU = 300 }},
		"retry_cnt in SQD": {ib.QPSSQD, ib.QPSSQD, ib.QPMaskRetryCount, func(a *ib.QPAttr) { a.RetryCount = 9 }},
	} {
		x := inState(t, "RC", c.from)
		mask := c.mask | rcTransitions[[2]ib.QPState{c.from, c.to}].required
		a := validAttr
		a.State = c.to
		if err := x.qp.Modify(&x.env, &a, mask|ib.QPMaskState); err != nil {
			t.Errorf("%s: valid attributes: %v", name, err)
		}
		x = inState(t, "RC", c.from)
		before := x.qp.Query()
		c.set(&a)
		if err := x.qp.Modify(&x.env, &a, mask|ib.QPMaskState); !errors.Is(err, ErrAttribute) {
			t.Errorf("%s: %v, want ErrAttribute", name, err)
		}
		if x.qp.Query() != before {
			t.Errorf("%s: rejected, but changed", name)
		}
	}
}

// The path MTU may change in SQD while no message is in progress, and traffic continues with the
// new one.
func TestPathMTUCanChangeInSQD(t *testing.T) {
	a, b := connect(t, defaults) // 1024
	drain := func(x *side) {
		must(t, x.qp.Modify(&x.env, &ib.QPAttr{State: ib.QPSSQD}, ib.QPMaskState))
	}
	mtu := func(x *side, n int) error { return x.qp.Modify(&x.env, &ib.QPAttr{PathMTU: n}, ib.QPMaskPathMTU) }
	b.recv(1, 0, 4000)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 3000)})
	a.room = 1
	a.qp.Transmit(&a.env)
	a.room = -1
	drain(a)
	if err := mtu(a, 256); !errors.Is(err, ErrAttribute) || !a.qp.Query().Draining {
		t.Errorf("with a message in progress: %v, draining %v", err, a.qp.Query().Draining)
	}
	run(t, a, b, deliverAll)
	drain(b)
	if a.qp.Query().Draining {
		t.Error("still draining")
	}
	must(t, mtu(a, 256))
	must(t, mtu(b, 256))
	b.recv(2, 0, 4000)
	for _, x := range []*side{a, b} {
		must(t, x.qp.Modify(&x.env, &ib.QPAttr{State: ib.QPSRTS}, ib.QPMaskState))
	}
	fill(a.mem[:3000], 9)
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 3000)})
	a.post(SendWR{ID: 3, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, RemoteAddr: sideBase, RKey: b.region.RKey(), SGEs: a.sge(3000, 600)})
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0 2:0 3:0" || statuses(b.done) != "1:0 2:0" {
		t.Errorf("completions %s and %s", got, statuses(b.done))
	}
	drain(b)
	b.room = 0
	psn, _ := b.qp.Expected()
	b.request(packet.ReadRequest, psn, 0, reth(sideBase, 8))
	if err := mtu(b, 1024); !errors.Is(err, ErrAttribute) {
		t.Errorf("with a response in progress: %v", err)
	}
}
