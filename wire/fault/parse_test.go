package fault

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"softroce/packet"
)

func TestParseErrorsSuggestCorrections(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"dorp", `line 1: "dorp": a line begins with an action or the seed; did you mean "drop"?`},
		{"explode everything", `line 1: "explode": a line begins with an action or the seed (have: close, corrupt, delay, drop, duplicate, fail, hold, mark, rate, reorder, seed, set, slow, stall)`},
		{"\n# fine\ndrop opcdoe WRITE_ONLY", `line 3: "opcdoe": is not a condition of "drop"; did you mean "opcode"?`},
		{"drop opcode WRITE_ONYL", `line 1: "WRITE_ONYL": is not an opcode; did you mean "WRITE_ONLY"?`},
		{"drop kind wirte", `line 1: "wirte": is not a kind of packet; did you mean "write"?`},
		{"drop kind read kind first", `line 1: at the end: no packet meets all of opcode, kind and syndrome`},
		{"drop qp", `line 1: at the end: a QP number must follow`},
		{"drop qp 0x1000000", `line 1: "0x1000000": must be a QP number, at most 16777215`},
		{"drop qp seventeen", `line 1: "seventeen": must be a QP number, decimal or with 0x`},
		{"drop psn 5..", `line 1: "5..": must be a PSN or a range such as 5..9`},
		{"drop qp 1,", `line 1: "1,": must be a QP number, or several separated by commas`},
		{"drop psn 1 psn 2", `line 1: "psn": is given twice; separate several values with commas`},
		{"drop nth 0", `line 1: "0": the first packet is number 1`},
		{"drop every 0", `line 1: "0": must be a number of packets, at least 1`},
		{"drop chance 5", `line 1: "5": must be a percentage above 0% and up to 100%, such as 0.5%`},
		{"drop chance NaN%", `line 1: "NaN%": must be a percentage above 0% and up to 100%, such as 0.5%`},
		{"drop within 1ms", `line 1: "within": belongs to "reorder", not to "drop"`},
		{"delay", `line 1: at the end: a time such as 20us or 1.5ms must follow`},
		{"delay 5", `line 1: "5": must be a time such as 20us or 1.5ms, at most 1h`},
		{"rate 5", `line 1: "5": must be a rate such as 100Mbit or 2.5Gbit, from 1kbit to 10000Gbit`},
		{"set psm 5", `line 1: "psm": is not a header field; did you mean "psn"?`},
		{"set tver 16", `line 1: "16": must be a value for tver, at most 15`},
		{"set psn", `line 1: at the end: a value for psn must follow`},
		{"drop src example", `line 1: "example": must be an address or a prefix, such as 192.0.2.1 or 2001:db8::/64`},
		{"drop roce 1", `line 1: "1": must be v1 or v2`},
		{"drop roce", `line 1: at the end: v1 or v2 must follow`},
		{"stall nic softroce0", `line 1: at the end: stall needs the time when it ends, such as time 5s..7s or time ..2s`},
		{"stall time 2s..", `line 1: at the end: stall needs the time when it ends, such as time 5s..7s or time ..2s`},
		{"drop client app client 7", `line 1: "client": is given twice; separate several values with commas`},
		{"drop cm rqe", `line 1: "rqe": is not a message of the connection manager; did you mean "req"?`},
		{"drop time 2s", `line 1: "2s": must be a range of times since the start, such as 1s..2s, ..500ms or 3s.., at most 87600h`},
		{"drop time 2s..1s", `line 1: "2s..1s": must be a range of times since the start, such as 1s..2s, ..500ms or 3s.., at most 87600h`},
		{"fail create_pq ENOMEM", `line 1: "create_pq": is not a verb; did you mean "create_cq"?`},
		{"fail create_qp ENOMEN", `line 1: "ENOMEN": is not the name of an error; did you mean "ENOMEM"?`},
		{"fail create_qp", `line 1: at the end: an error such as ENOMEM must follow`},
		{"slow create_qp", `line 1: at the end: a time such as 200ms or 3s must follow`},
		{"fail completion RETRY_EXEC_ERR", `line 1: "RETRY_EXEC_ERR": is not an error that a work request causes; did you mean "RETRY_EXC_ERR"?`},
		{"fail completion WR_FLUSH_ERR", `line 1: "WR_FLUSH_ERR": is not an error that a work request causes (have: BAD_RESP_ERR, FATAL_ERR, GENERAL_ERR, LOC_ACCESS_ERR, LOC_LEN_ERR, LOC_PROT_ERR, LOC_QP_OP_ERR, MW_BIND_ERR, REM_ABORT_ERR, REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR, RESP_TIMEOUT_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR)`},
		{"fail completion RETRY_EXC_ERR opcode recv", `line 1: "RETRY_EXC_ERR": is not an error of opcode recv (have: FATAL_ERR, GENERAL_ERR, LOC_ACCESS_ERR, LOC_LEN_ERR, LOC_PROT_ERR, LOC_QP_OP_ERR, REM_ABORT_ERR)`},
		{"fail completion MW_BIND_ERR opcode bind_mw,send", `line 1: "MW_BIND_ERR": is not an error of opcode send (have: FATAL_ERR, GENERAL_ERR, LOC_LEN_ERR, LOC_PROT_ERR, LOC_QP_OP_ERR, REM_ABORT_ERR, REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR, RESP_TIMEOUT_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR)`},
		{"fail completion GENERAL_ERR opcode rdma_wriet", `line 1: "rdma_wriet": is not the opcode of a completion; did you mean "rdma_write"?`},
		{"slow completion 1ms vendor_err 5", `line 1: "vendor_err": belongs to "fail"`},
		{"hold completion psn 5", `line 1: "psn": is not a condition of rules for completions (have: chance, client, count, every, nic, nth, opcode, qp, skip, time, vendor_err)`},
		{"close", `line 1: at the end: the name of a verb, such as create_qp must follow`},
		{"close create_pq", `line 1: "create_pq": is not a verb; did you mean "create_cq"?`},
		{"fail connection", `line 1: at the end: a reason such as consumer_defined must follow`},
		{"fail connection consumer_defind", `line 1: "consumer_defind": is not the reason of a REJ, by name or from 1 to 65534; did you mean "consumer_defined"?`},
		{"fail connection unreachabel", `line 1: "unreachabel": is not the reason of a REJ, by name or from 1 to 65534; did you mean "unreachable"?`},
		{"slow timewiat 5s", `line 1: "timewiat": is not a verb; did you mean "timewait"?`},
		{"slow reg_mr,timewait 5s", `line 1: "timewait": is no verb, and must stand alone`},
		{"fail connection,reg_mr stale_connection", `line 1: "connection": is no verb, and must stand alone`},
		{"fail access opcode rdma_write", `line 1: "opcode": is not a condition of rules for access (have: chance, client, count, every, nic, nth, qp, rkey, skip, time)`},
		{"fail access rkey 0x100000000", `line 1: "0x100000000": must be an R_Key, at most 4294967295`},
		{"fail accesses", `line 1: "accesses": is not a verb; did you mean "access"?`},
		{"hold completions", `line 1: "completions": is not a verb; did you mean "completion"?`},
		{"hold", `line 1: at the end: the name of a verb, such as create_qp must follow`},
		{"fail reg_mr EFAULT psn 5", `line 1: "psn": is not a condition of rules for verbs (have: chance, client, count, every, nic, nth, skip, time)`},
		{"fail reg_mr EFAULT nth 1 nth 2", `line 1: "nth": is given twice; separate several values with commas`},
		{"seed 1 2", `line 1: "2": nothing may follow the seed`},
		{"seed 1\nseed 1", `line 2: "seed": is given twice`},
		{"fail access,reg_mr ENOMEM", `line 1: "access": is no verb, and must stand alone`},
		{"fail ibv_create_qp ENOMEM", `line 1: "ibv_create_qp": is not a verb; did you mean "create_qp"?`},
		{"fail create_qp enomem", `line 1: "enomem": is not the name of an error; did you mean "ENOMEM"?`},
		{"fail completion IBV_WC_LOC_PROT_ERR", `line 1: "IBV_WC_LOC_PROT_ERR": is not an error that a work request causes; did you mean "LOC_PROT_ERR"?`},
		{"dorp\ndelay", "line 1: \"dorp\": a line begins with an action or the seed; did you mean \"drop\"?\n" +
			"line 2: at the end: a time such as 20us or 1.5ms must follow"},
	} {
		_, err := Parse(strings.NewReader(c.text))
		var fe *Error
		if !errors.As(err, &fe) || err.Error() != c.want {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

// A rule that can match nothing, or change nothing that it matches, is a mistake.
func TestRulesWithoutEffectAreRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"drop nth 5 every 2", "at the end: no number of nth is a multiple of 2, as every demands"},
		{"fail reg_mr ENOMEM nth 1,3 every 2", "at the end: no number of nth is a multiple of 2, as every demands"},
		{"slow completion 1ms nth 1 every 2", "at the end: no number of nth is a multiple of 2, as every demands"},
		{"drop kind nak kind rnr", "at the end: no packet meets all of opcode, kind and syndrome"},
		{"drop kind ack syndrome rnr", "at the end: no packet meets all of opcode, kind and syndrome"},
		{"drop syndrome nak kind ack", "at the end: no packet meets all of opcode, kind and syndrome"},
		{"drop cm req kind write", "at the end: messages of the connection manager have opcode UD_SEND_ONLY"},
		{"drop opcode RC_SEND_ONLY cm rep", "at the end: messages of the connection manager have opcode UD_SEND_ONLY"},
		{"drop cm req qp 0x11", "at the end: messages of the connection manager are for QP 1"},
		{"drop cm req client app", "at the end: messages of the connection manager are of no client"},
		{"set va 1 kind ack", "at the end: packets of opcode RC_ACKNOWLEDGE,XRC_ACKNOWLEDGE have no va"},
		{"set rkey 1 cm req", "at the end: packets of opcode UD_SEND_ONLY have no rkey"},
		{"set qkey 1 opcode 0xff", "at the end: packets of opcode 0xff have no qkey"},
		{"mark roce v1", "at the end: packets of RoCE v1 have no ECN bits to mark"},
		{"corrupt bit 33312", `"33312": must be the number of a bit of a packet, counted from the first of the BTH, at most 33311`},
		{"drop src 192.0.2.1 dst 2001:db8::1", `"2001:db8::1/128": no packet has a source in 192.0.2.1/32 and such a destination: one is IPv4, the other IPv6`},
		{"stall time ..2562047h", `"..2562047h": must be a range of times since the start, such as 1s..2s, ..500ms or 3s.., at most 87600h`},
		{"drop client ucx_perftest_long", `"ucx_perftest_long": names of programs end after 15 characters: did you mean "ucx_perftest_lo"?`},
		{"fail reg_mr ENOMEM client caf\u00e9", `"café": other characters than printable ASCII are ? in names of programs`},
	} {
		if _, err := Parse(strings.NewReader(c.text)); err == nil || err.Error() != "line 1: "+c.want {
			t.Errorf("%q:\n got %v\nwant line 1: %s", c.text, err, c.want)
		}
	}
	for _, text := range []string{
		"drop nth 2,3 every 2", "drop kind nak,write kind rnr,write", "drop kind ack,response syndrome nak", "drop cm req opcode SEND_ONLY qp 1,2",
		"set qkey 1 cm req", "set va 1 kind ack,write", "corrupt bit 33311", "drop src ::ffff:192.0.2.1 dst 192.0.2.2", "mark roce v2",
		"drop client ibv_rc_pingpong", "stall time ..87600h",
	} {
		if _, err := Parse(strings.NewReader(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLongLinesAndUnreadableFilesAreNamed(t *testing.T) {
	_, err := Parse(strings.NewReader("drop\ndrop qp " + strings.Repeat("1,", maxLine)))
	if want := "line 2: longer than 65536 bytes"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := Parse(iotest.ErrReader(errors.New("read lossy.fault: is a directory"))); err == nil || err.Error() != "read lossy.fault: is a directory" {
		t.Error(err)
	}
}

func TestRuleStringParsesToTheSameRule(t *testing.T) {
	for _, text := range []string{
		"drop",
		"duplicate 3 send",
		"reorder 2 within 1ms nic softroce0 receive",
		"delay 20us jitter 5us qp 0x11,0x12 opcode RC_SEND_FIRST,RC_ACKNOWLEDGE,0x3f",
		"corrupt bit 0 syndrome nak,rnr",
		"drop receive cm req,sidr_rep count 3",
		"drop roce v1 skip 2",
		"delay 1ms roce v2",
		"mark psn 5,9..100,16777215..3 src 192.0.2.0/24 dst 192.0.2.1/32 time 1s..2.5s",
		"set rkey 0x5 dst 2001:db8::1/128 time 0s..1s skip 1 nth 2,4 every 4 chance 0.5% count 5",
		"rate 1000000bit queue 7 time 1s..",
		"stall send time 0s..2s",
	} {
		p, err := Parse(strings.NewReader(text + " # comment"))
		if err != nil {
			t.Error(err)
			continue
		}
		r := p.Rules[0]
		if r.String() != text {
			t.Errorf("the rule says it is %q, not %q", r, text)
		}
		r.Text = ""
		if r.String() != text {
			t.Errorf("%q is spelled %q", text, r)
		}
	}
}

// docsExamples returns the blocks marked as faults in docs/reference/fault-language.md.
func docsExamples(t testing.TB) (blocks []string) {
	b, err := os.ReadFile("../../docs/reference/fault-language.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(b), "```") {
		if block, ok := strings.CutPrefix(part, "faults\n"); ok && i%2 == 1 {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

func TestDocumentationCoversTheLanguage(t *testing.T) {
	blocks := docsExamples(t)
	if len(blocks) < 5 {
		t.Errorf("only %d examples found", len(blocks))
	}
	for _, b := range blocks {
		if _, err := Parse(strings.NewReader(b)); err != nil {
			t.Errorf("%v in:\n%s", err, b)
		}
	}
	doc, _ := os.ReadFile("../../docs/reference/fault-language.md")
	for _, words := range [][]string{actionNames[:], commonClauses, {"within", "jitter", "bit", "queue"}} {
		for _, w := range words {
			if !strings.Contains(string(doc), "`"+w) {
				t.Errorf("%q is not documented", w)
			}
		}
	}
	for _, words := range [][]string{programActions, VerbNames, completionClauses, slices.Collect(maps.Keys(completionOpcodes))} {
		for _, w := range words {
			if !strings.Contains(string(doc), "`"+w) {
				t.Errorf("%q is not documented", w)
			}
		}
	}
	_, completions, _ := strings.Cut(string(doc), "## Completions")
	for _, name := range statusNames(allStatuses()) {
		if !strings.Contains(completions, name) {
			t.Errorf("%q is not documented", name)
		}
	}
	for k := range kindNames {
		if !strings.Contains(string(doc), "`"+k+"`") {
			t.Errorf("kind %q is not documented", k)
		}
	}
	for _, f := range fieldInfos {
		if !strings.Contains(string(doc), "`"+f.name+"`") {
			t.Errorf("field %q is not documented", f.name)
		}
	}
}

func TestOpcodesPrintsAsACondition(t *testing.T) {
	r := Rule{Action: Drop, Opcodes: Opcodes(packet.ReadRequest, packet.AtomicAcknowledge)}
	if want := "drop opcode RC_READ_REQUEST,RC_ATOMIC_ACKNOWLEDGE"; r.String() != want {
		t.Errorf("rule prints as %q, want %q", r, want)
	}
}
