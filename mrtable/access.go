package mrtable

import "softroce/internal/ib"

const (
	// known are the flags that a registration may have. AccessFlushPersistent is not among them: no
	// memory here is persistent.
	known = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessMWBind |
		ib.AccessZeroBased | ib.AccessOnDemand | ib.AccessHugeTLB | ib.AccessFlushGlobal | ib.AccessOptional

	// windowAccess are the rights that a memory window can grant.
	windowAccess = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessFlushGlobal | ib.AccessZeroBased
)

// checkAccess applies the rules of ibv_reg_mr: no unknown flag, and no remote right to change
// memory without the local one.
func checkAccess(a ib.Access) error {
	if a&^known != 0 {
		return ErrFlags
	}
	if a&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && a&ib.AccessLocalWrite == 0 {
		return ErrFlags
	}
	return nil
}
