package ib

import (
	"fmt"
	"strings"
)

// A RejectReason is the reason of a REJ (IBTA 12.6.7.2).
type RejectReason uint16

var rejectReasons = map[RejectReason]string{
	1: "no QP", 2: "no EE context", 3: "no resources", 4: "timeout",
	5: "unsupported request", 6: "invalid communication ID",
	7: "invalid communication instance", 8: "invalid service ID",
	9: "invalid transport service type", 10: "stale connection", 11: "no RDC",
	12: "invalid primary GID", 13: "invalid primary LID", 14: "invalid primary SL",
	15: "invalid primary traffic class", 16: "invalid primary hop limit", 17: "invalid primary packet rate",
	18: "invalid alternate GID", 19: "invalid alternate LID", 20: "invalid alternate SL",
	21: "invalid alternate traffic class", 22: "invalid alternate hop limit", 23: "invalid alternate packet rate",
	24: "port and CM redirection", 25: "port redirection", 26: "invalid path MTU",
	27: "insufficient responder resources", 28: "consumer defined", 29: "invalid RNR retry count",
	30: "duplicate communication ID", 31: "invalid class version",
	32: "invalid primary flow label", 33: "invalid alternate flow label", 35: "vendor option not supported",
}

func (r RejectReason) String() string {
	if s, ok := rejectReasons[r]; ok {
		return s
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// RejectReasons returns the reasons that have a name, by this name with underscores for spaces and
// in lower case, such as "consumer_defined".
func RejectReasons() map[string]RejectReason {
	m := map[string]RejectReason{}
	for r, name := range rejectReasons {
		m[strings.ReplaceAll(strings.ToLower(name), " ", "_")] = r
	}
	return m
}
