package cm

import "softroce/internal/ib"

// A Reason is the reason of a REJ.
type Reason = ib.RejectReason

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
