package cm

import "softroce/internal/ib"

// A Reason is the reason of a REJ.
type Reason = ib.RejectReason

// Reasons: see package ib.
const (
	RejectNoQP           = ib.RejectNoQP
	RejectNoResources    = ib.RejectNoResources
	RejectTimeout        = ib.RejectTimeout
	RejectUnsupported    = ib.RejectUnsupported
	RejectInvalidID      = ib.RejectInvalidID
	RejectInvalidService = ib.RejectInvalidService
	RejectInvalidType    = ib.RejectInvalidType
	RejectStale          = ib.RejectStale
	RejectInvalidGID     = ib.RejectInvalidGID
	RejectInvalidMTU     = ib.RejectInvalidMTU
	RejectConsumer       = ib.RejectConsumer
	RejectDuplicateID    = ib.RejectDuplicateID
	RejectInvalidVersion = ib.RejectInvalidVersion
	RejectVendorOption   = ib.RejectVendorOption
)
