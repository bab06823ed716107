package transport

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"softroce/packet"
)

// maskNames are short names of attributes, for the table below.
var maskNames = map[string]AttrMask{
	"cur": MaskCurState, "notify": MaskEnSQDNotify, "access": MaskAccess, "pkey": MaskPKeyIndex, "port": MaskPort,
	"qkey": MaskQKey, "av": MaskAV, "mtu": MaskPathMTU, "timeout": MaskTimeout, "retry": MaskRetryCount,
	"rnr": MaskRNRRetry, "rqpsn": MaskRQPSN, "rd": MaskMaxRDAtomic, "alt": MaskAltPath, "minrnr": MaskMinRNRTimer,
	"sqpsn": MaskSQPSN, "destrd": MaskMaxDestRDAtomic, "mig": MaskPathMigState, "dest": MaskDestQPN,
}

func maskOf(t *testing.T, names string) (m AttrMask) {
	for n := range strings.FieldsSeq(names) {
		if maskNames[n] == 0 {
			t.Fatalf("attribute %q", n)
		}
		m |= maskNames[n]
	}
	return m
}

// modifyTable is IBTA 11.2.5.2 and annex A14, as verbs programs know it: for each way that there is, what must be
// given; what may be.
var modifyTable = []struct {
	kind      string // RC, UC, UD, XRC_INI, XRC_TGT
	from, to  State
	must, may string
}{
	{"RC", Reset, Init, "pkey port access", ""},
	{"RC", Init, Init, "", "pkey port access"},
	{"RC", Init, RTR, "av mtu dest rqpsn destrd minrnr", "alt access pkey"},
	{"RC", RTR, RTS, "timeout retry rnr sqpsn rd", "cur alt access minrnr mig"},
	{"RC", RTS, RTS, "", "cur access alt mig minrnr"},
	{"RC", RTS, SQD, "", "notify"},
	{"RC", SQD, RTS, "", "cur alt access minrnr mig"},
	{"RC", SQD, SQD, "", "port av mtu timeout retry rnr rd destrd alt access pkey minrnr mig"},

	{"UC", Reset, Init, "pkey port access", ""},
	{"UC", Init, Init, "", "pkey port access"},
	{"UC", Init, RTR, "av mtu dest rqpsn", "alt access pkey"},
	{"UC", RTR, RTS, "sqpsn", "cur alt access mig"},
	{"UC", RTS, RTS, "", "cur access alt mig"},
	{"UC", RTS, SQD, "", "notify"},
	{"UC", SQD, RTS, "", "cur alt access mig"},
	{"UC", SQD, SQD, "", "av mtu alt access pkey mig"},
	{"UC", SQE, RTS, "", "cur access"},

	{"UD", Reset, Init, "pkey port qkey", ""},
	{"UD", Init, Init, "", "pkey port qkey"},
	{"UD", Init, RTR, "", "pkey qkey"},
	{"UD", RTR, RTS, "sqpsn", "cur qkey"},
	{"UD", RTS, RTS, "", "cur qkey"},
	{"UD", RTS, SQD, "", "notify"},
	{"UD", SQD, RTS, "", "cur qkey"},
	{"UD", SQD, SQD, "", "pkey qkey"},
	{"UD", SQE, RTS, "", "cur qkey"},

	{"XRC_INI", Reset, Init, "pkey port access", ""},
	{"XRC_INI", Init, Init, "", "pkey port access"},
	{"XRC_INI", Init, RTR, "av mtu dest rqpsn", "alt access pkey"},
	{"XRC_INI", RTR, RTS, "timeout retry rnr sqpsn rd", "cur alt access mig"},
	{"XRC_INI", RTS, RTS, "", "cur access alt mig"},
	{"XRC_INI", RTS, SQD, "", "notify"},
	{"XRC_INI", SQD, RTS, "", "cur alt access mig"},
	{"XRC_INI", SQD, SQD, "", "port av mtu timeout retry rnr rd alt access pkey mig"},

	{"XRC_TGT", Reset, Init, "pkey port access", ""},
	{"XRC_TGT", Init, Init, "", "pkey port access"},
	{"XRC_TGT", Init, RTR, "av mtu dest rqpsn destrd minrnr", "alt access pkey"},
	{"XRC_TGT", RTR, RTS, "timeout sqpsn", "cur alt access minrnr mig"},
	{"XRC_TGT", RTS, RTS, "", "cur access alt mig minrnr"},
	{"XRC_TGT", RTS, SQD, "", "notify"},
	{"XRC_TGT", SQD, RTS, "", "cur alt access minrnr mig"},
	{"XRC_TGT", SQD, SQD, "", "port av mtu timeout destrd alt access pkey minrnr mig"},
}

// standing makes a queue pair that is in a state.
func standing(t *testing.T, kind string, s State) *side {
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
		c.Service, c.Role, c.Domain = packet.XRC, Target, noDomain{}
	}
	x := newSide(t, 17, 64)
	c.Recv = &x.rq
	q, err := New(c)
	must(t, err)
	q.state = s
	x.qp = q
	return x
}

type noDomain struct{ Domain }

// good are attributes that are in range wherever they count.
var good = Attr{PathMTU: 1024, RQPSN: 1, SQPSN: 2, DestQPN: 3, MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 5, Timeout: 6,
	RetryCount: 7, RNRRetry: 7}

// tryModify goes from one state to another with a mask.
func tryModify(t *testing.T, kind string, from, to State, mask AttrMask) error {
	x := standing(t, kind, from)
	a := good
	a.State, a.CurState = to, from
	err := x.qp.Modify(&x.env, &a, mask|MaskState)
	if want := to; err == nil && x.qp.State() != want || err != nil && x.qp.State() != from {
		t.Errorf("%s, %v to %v with %#x: in %v after %v", kind, from, to, uint32(mask), x.qp.State(), err)
	}
	return err
}

func TestModifyTakesWhatTheTransitionNeedsAndNothingElse(t *testing.T) {
	all := AttrMask(0)
	for _, m := range maskNames {
		all |= m
	}
	ways := map[string]bool{}
	for _, row := range modifyTable {
		ways[fmt.Sprint(row.kind, row.from, row.to)] = true
		needs, may := maskOf(t, row.must), maskOf(t, row.may)
		for bit := AttrMask(1); bit != 0 && bit <= all; bit <<= 1 {
			switch {
			case bit&all == 0 || bit == MaskCurState && may&bit == 0:
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
					t.Errorf("%s, %v to %v with %#x, which has no place there: %v", row.kind, row.from, row.to, uint32(bit), err)
				}
			}
		}
		if err := tryModify(t, row.kind, row.from, row.to, needs|may); err != nil {
			t.Errorf("%s, %v to %v with all %d attributes: %v", row.kind, row.from, row.to, bits.OnesCount32(uint32(needs|may)), err)
		}
	}
	for _, kind := range []string{"RC", "UC", "UD", "XRC_INI", "XRC_TGT"} {
		for from := Reset; from <= Error; from++ {
			for to := Reset; to <= Error; to++ {
				err := tryModify(t, kind, from, to, 0)
				switch {
				case to == Reset, to == Error && from != Reset:
					if err != nil {
						t.Errorf("%s, %v to %v: %v", kind, from, to, err)
					}
					if err := tryModify(t, kind, from, to, MaskAccess); !errors.Is(err, ErrAttribute) {
						t.Errorf("%s, %v to %v with access flags: %v", kind, from, to, err)
					}
				case !ways[fmt.Sprint(kind, from, to)] && !errors.Is(err, ErrTransition):
					t.Errorf("%s, %v to %v, which is no way: %v", kind, from, to, err)
				}
			}
		}
		x := standing(t, kind, RTS)
		a := good
		a.State, a.CurState = RTS, SQD
		if err := x.qp.Modify(&x.env, &a, MaskState|MaskCurState); !errors.Is(err, ErrTransition) {
			t.Errorf("%s in RTS, said to be in SQD: %v", kind, err)
		}
	}
}

func TestAttributesOutOfRangeAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		from, to State
		mask     AttrMask
		set      func(*Attr)
	}{
		"path MTU 0":       {Init, RTR, 0, func(a *Attr) { a.PathMTU = 0 }},
		"path MTU 1000":    {Init, RTR, 0, func(a *Attr) { a.PathMTU = 1000 }},
		"path MTU 8192":    {Init, RTR, 0, func(a *Attr) { a.PathMTU = 8192 }},
		"RQ PSN":           {Init, RTR, 0, func(a *Attr) { a.RQPSN = 1 << 24 }},
		"QPN":              {Init, RTR, 0, func(a *Attr) { a.DestQPN = 1 << 24 }},
		"max_dest_rd":      {Init, RTR, 0, func(a *Attr) { a.MaxDestRDAtomic = MaxRDAtomic + 1 }},
		"min_rnr_timer":    {Init, RTR, 0, func(a *Attr) { a.MinRNRTimer = 32 }},
		"SQ PSN":           {RTR, RTS, 0, func(a *Attr) { a.SQPSN = 1 << 24 }},
		"timeout":          {RTR, RTS, 0, func(a *Attr) { a.Timeout = 32 }},
		"retry_cnt":        {RTR, RTS, 0, func(a *Attr) { a.RetryCount = 8 }},
		"rnr_retry":        {RTR, RTS, 0, func(a *Attr) { a.RNRRetry = 8 }},
		"max_rd_atomic":    {RTR, RTS, 0, func(a *Attr) { a.MaxRDAtomic = MaxRDAtomic + 1 }},
		"timeout in SQD":   {SQD, SQD, MaskTimeout, func(a *Attr) { a.Timeout = 32 }},
		"path MTU in SQD":  {SQD, SQD, MaskPathMTU, func(a *Attr) { a.PathMTU = 300 }},
		"retry_cnt in SQD": {SQD, SQD, MaskRetryCount, func(a *Attr) { a.RetryCount = 9 }},
	} {
		x := standing(t, "RC", c.from)
		mask := c.mask | rcTransitions[[2]State{c.from, c.to}].required
		a := good
		a.State = c.to
		if err := x.qp.Modify(&x.env, &a, mask|MaskState); err != nil {
			t.Errorf("%s: good attributes: %v", name, err)
		}
		x = standing(t, "RC", c.from)
		before := x.qp.Query()
		c.set(&a)
		if err := x.qp.Modify(&x.env, &a, mask|MaskState); !errors.Is(err, ErrAttribute) {
			t.Errorf("%s: %v", name, err)
		}
		if x.qp.Query() != before {
			t.Errorf("%s: refused, and changed", name)
		}
	}
}

// The path MTU may change in SQD when nothing is under way; traffic goes on with the new one.
func TestInSQDThePathMTUCanChange(t *testing.T) {
	a, b := connect(t, usual) // 1024
	drain := func(x *side) {
		must(t, x.qp.Modify(&x.env, &Attr{State: SQD}, MaskState))
	}
	mtu := func(x *side, n int) error { return x.qp.Modify(&x.env, &Attr{PathMTU: n}, MaskPathMTU) }
	b.recv(1, 0, 4000)
	a.post(SendWR{ID: 1, Opcode: WRSend, Flags: Signaled, SGEs: a.sge(0, 3000)})
	a.room = 1
	a.qp.Transmit(&a.env)
	a.room = -1
	drain(a)
	if err := mtu(a, 256); !errors.Is(err, ErrAttribute) || !a.qp.Query().Draining {
		t.Errorf("with a message under way: %v, draining %v", err, a.qp.Query().Draining)
	}
	run(t, a, b, all)
	drain(b)
	if a.qp.Query().Draining {
		t.Error("still draining")
	}
	must(t, mtu(a, 256))
	must(t, mtu(b, 256))
	b.recv(2, 0, 4000)
	for _, x := range []*side{a, b} {
		must(t, x.qp.Modify(&x.env, &Attr{State: RTS}, MaskState))
	}
	fill(a.mem[:3000], 9)
	a.post(SendWR{ID: 2, Opcode: WRSend, Flags: Signaled, SGEs: a.sge(0, 3000)})
	a.post(SendWR{ID: 3, Opcode: WRRead, Flags: Signaled, RemoteAddr: sideBase, RKey: b.region.RKey(), SGEs: a.sge(3000, 600)})
	run(t, a, b, all)
	if got := statuses(a.done); got != "1:0 2:0 3:0" || statuses(b.done) != "1:0 2:0" {
		t.Errorf("%s, %s", got, statuses(b.done))
	}
	drain(b)
	b.room = 0
	psn, _ := b.qp.Expected()
	b.request(packet.ReadRequest, psn, 0, reth(sideBase, 8))
	if err := mtu(b, 1024); !errors.Is(err, ErrAttribute) {
		t.Errorf("with an answer under way: %v", err)
	}
}
