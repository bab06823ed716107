package verbspeer

import (
	"fmt"
	"regexp"
	"strconv"

	"softroce/verbs"
)

// A Line is a completion that the guest's vprobe printed.
type Line struct {
	What    string // the client's operation, "server", or "earlier" and "left" for completions that were not waited for individually
	Status  verbs.WCStatus
	Receive Receive // set for a successful receive
}

// An Output is what the guest's vprobe printed.
type Output struct {
	Lines []Line
	Sum   uint32 // checksum of its buffer at the end
}

var (
	lineForm = regexp.MustCompile(`(?m)^(\S+) status=(\d+) \([^)]*\) opcode=(\d+)(?: len=(\d+))?(?: imm=0x([0-9a-f]+))? ms=`)
	sumForm  = regexp.MustCompile(`(?m)^(?:client|server) sum=([0-9a-f]{8})$`)
)

// ParseOutput parses the complete output of vprobe.
func ParseOutput(text string) (Output, error) {
	var o Output
	for _, m := range lineForm.FindAllStringSubmatch(text, -1) {
		status, _ := strconv.ParseUint(m[2], 10, 32)
		opcode, _ := strconv.ParseUint(m[3], 10, 32)
		l := Line{What: m[1], Status: verbs.WCStatus(status)}
		if m[4] != "" {
			length, _ := strconv.ParseUint(m[4], 10, 32)
			l.Receive = Receive{Opcode: verbs.WCOpcode(opcode), Length: uint32(length)}
		}
		if m[5] != "" {
			v, _ := strconv.ParseUint(m[5], 16, 32)
			l.Receive.Imm, l.Receive.WithImm = uint32(v), true
		}
		o.Lines = append(o.Lines, l)
	}
	m := sumForm.FindStringSubmatch(text)
	if m == nil {
		return o, fmt.Errorf("vprobe did not finish; it printed:\n%s", text)
	}
	v, err := strconv.ParseUint(m[1], 16, 32)
	o.Sum = uint32(v)
	return o, err
}
