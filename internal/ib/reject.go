package ib

import (
	"fmt"
	"strings"
)

// A RejectReason is the reason of a REJ (IBTA 12.6.7.2).
type RejectReason uint16

// Reasons that softroce sends or acts on.
const (
	RejectNoQP           RejectReason = 1
	RejectNoResources    RejectReason = 3
	RejectTimeout        RejectReason = 4
	RejectUnsupported    RejectReason = 5
	RejectInvalidID      RejectReason = 6 // communication ID
	RejectInvalidService RejectReason = 8 // service ID
	RejectInvalidType    RejectReason = 9 // transport service type
	RejectStale          RejectReason = 10
	RejectInvalidGID     RejectReason = 12
	RejectInvalidMTU     RejectReason = 26
	RejectConsumer       RejectReason = 28
	RejectDuplicateID    RejectReason = 30
	RejectInvalidVersion RejectReason = 31
	RejectVendorOption   RejectReason = 35 // the enhanced connection establishment's options are not supported
)

var rejectReasons = map[RejectReason]string{
	RejectNoQP: "no QP", 2: "no EE context", RejectNoResources: "no resources", RejectTimeout: "timeout",
	RejectUnsupported: "unsupported request", RejectInvalidID: "invalid communication ID",
	7: "invalid communication instance", RejectInvalidService: "invalid service ID",
	RejectInvalidType: "invalid transport service type", RejectStale: "stale connection", 11: "no RDC",
	RejectInvalidGID: "invalid primary GID", 13: "invalid primary LID", 14: "invalid primary SL",
	15: "invalid primary traffic class", 16: "invalid primary hop limit", 17: "invalid primary packet rate",
	18: "invalid alternate GID", 19: "invalid alternate LID", 20: "invalid alternate SL",
	21: "invalid alternate traffic class", 22: "invalid alternate hop limit", 23: "invalid alternate packet rate",
	24: "port and CM redirection", 25: "port redirection", RejectInvalidMTU: "invalid path MTU",
	27: "insufficient responder resources", RejectConsumer: "consumer defined", 29: "invalid RNR retry count",
	RejectDuplicateID: "duplicate communication ID", RejectInvalidVersion: "invalid class version",
	32: "invalid primary flow label", 33: "invalid alternate flow label", RejectVendorOption: "vendor option not supported",
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
