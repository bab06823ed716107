package cm

import "fmt"

// A Reason is the reason of a REJ (IBTA 12.6.7.2).
type Reason uint16

// Reasons that this side sends or has a name for.
const (
	RejectNoQP           Reason = 1
	RejectNoResources    Reason = 3
	RejectTimeout        Reason = 4
	RejectUnsupported    Reason = 5
	RejectInvalidID      Reason = 6 // communication ID
	RejectInvalidService Reason = 8 // service ID
	RejectInvalidType    Reason = 9 // transport service type
	RejectStale          Reason = 10
	RejectInvalidGID     Reason = 12
	RejectInvalidMTU     Reason = 26
	RejectConsumer       Reason = 28
	RejectDuplicateID    Reason = 30
	RejectInvalidVersion Reason = 31
	RejectVendorOption   Reason = 35 // the enhanced connection establishment's options are not supported
)

var reasonNames = map[Reason]string{
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

func (r Reason) String() string {
	if s, ok := reasonNames[r]; ok {
		return s
	}
	return fmt.Sprintf("reason %d", uint16(r))
}
