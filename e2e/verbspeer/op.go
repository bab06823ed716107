package verbspeer

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"softroce/verbs"
)

// An Op is one operation of vprobe's command line:
//
//	send:N sendse:N sendimm:N write:N writeimm:N read:N   N bytes, [@OFF] in both buffers
//	faa:VALUE cas:COMPARE,SWAP                              [@OFF]
//	badwrite:N badread:N badatomic                          with an invalid R_Key
//	oobwrite:N oobread:N                                    ending past the remote region
//	sleep:MS
//
// A leading + posts without waiting for the completion.
type Op struct {
	Text   string
	Name   string
	N      uint64 // bytes, or the first operand of an atomic
	Swap   uint64
	Offset uint64
	NoWait bool
}

// ParseOp parses an operation.
func ParseOp(text string) (Op, error) {
	op := Op{Text: text, N: 8}
	rest, plus := strings.CutPrefix(text, "+")
	op.NoWait = plus
	rest, off, at := strings.Cut(rest, "@")
	name, arg, hasArg := strings.Cut(rest, ":")
	op.Name = name
	first, second, _ := strings.Cut(arg, ",")
	for _, f := range []struct {
		present bool
		text    string
		into    *uint64
	}{{at, off, &op.Offset}, {hasArg, first, &op.N}, {second != "", second, &op.Swap}} {
		if !f.present {
			continue
		}
		v, err := strconv.ParseUint(f.text, 0, 64)
		if err != nil {
			return Op{}, fmt.Errorf("operation %q: %w", text, err)
		}
		*f.into = v
	}
	if _, ok := opcodes[name]; !ok && name != "sleep" {
		return Op{}, fmt.Errorf("operation %q is unknown", text)
	}
	return op, nil
}

// ParseOps parses operations separated by spaces.
func ParseOps(text string) (ops []Op, err error) {
	for _, s := range strings.Fields(text) {
		op, err := ParseOp(s)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

var opcodes = map[string]verbs.WROpcode{
	"send": verbs.WRSend, "sendse": verbs.WRSend, "sendimm": verbs.WRSendWithImm,
	"write": verbs.WRRDMAWrite, "badwrite": verbs.WRRDMAWrite, "oobwrite": verbs.WRRDMAWrite,
	"writeimm": verbs.WRRDMAWriteWithImm,
	"read":     verbs.WRRDMARead, "badread": verbs.WRRDMARead, "oobread": verbs.WRRDMARead,
	"faa": verbs.WRAtomicFetchAndAdd, "badatomic": verbs.WRAtomicFetchAndAdd,
	"cas": verbs.WRAtomicCmpAndSwp,
}

// imm is vprobe's immediate data. XOR with wrongKey makes an R_Key invalid.
const (
	imm      = 0x11223344
	wrongKey = 0x5a
)

func (op Op) atomic() bool { return op.Name == "faa" || op.Name == "cas" || op.Name == "badatomic" }

func (op Op) sleepTime() time.Duration { return time.Duration(op.N) * time.Millisecond }

// localLength is the length of the operation's local buffer.
func (op Op) localLength() uint64 {
	if op.atomic() {
		return 8
	}
	return op.N
}

// request returns the work request of op on the remote memory.
func (op Op) request(mr *verbs.MR, remote connInfo) verbs.SendWR {
	wr := verbs.SendWR{
		Opcode: opcodes[op.Name], SendFlags: verbs.SendSignaled,
		RemoteAddr: remote.addr + op.Offset, RKey: remote.rkey, Imm: imm,
		CompareAdd: op.N, Swap: op.Swap,
	}
	if n := op.localLength(); n > 0 {
		wr.SGList = []verbs.SGE{mr.SGE(int(op.Offset), int(n))}
	}
	switch op.Name {
	case "sendse":
		wr.SendFlags |= verbs.SendSolicited
	case "badwrite", "badread", "badatomic":
		wr.RKey ^= wrongKey
	case "oobwrite", "oobread":
		wr.RemoteAddr = remote.addr + remote.length - op.N/2
	}
	return wr
}
