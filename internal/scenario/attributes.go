package scenario

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
)

// defaultAttr returns the attributes of queue pairs that the script does not specify.
func defaultAttr() nic.QPAttr {
	return nic.QPAttr{
		QPAttr: ib.QPAttr{PathMTU: 1024, SQPSN: 100, RQPSN: 200, Access: accessFlags.values["all"] &^ ib.AccessLocalWrite,
			MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 12, Timeout: 23, RetryCount: 3, RNRRetry: 3, PKey: packet.DefaultPKey,
			QKey: 0x11111111},
		AV:   nic.AddressVector{Port: 1},
		Port: 1,
	}
}

// attrOption is an attribute that the script can specify.
type attrOption struct {
	bits int
	mask ib.QPAttrMask
	set  func(*nic.QPAttr, uint64)
}

var attrOptions = map[string]attrOption{
	"mtu":                {16, ib.QPMaskPathMTU, func(a *nic.QPAttr, v uint64) { a.PathMTU = int(v) }},
	"sq_psn":             {32, ib.QPMaskSQPSN, func(a *nic.QPAttr, v uint64) { a.SQPSN = uint32(v) }},
	"rq_psn":             {32, ib.QPMaskRQPSN, func(a *nic.QPAttr, v uint64) { a.RQPSN = uint32(v) }},
	"dest_qp":            {32, ib.QPMaskDestQPN, func(a *nic.QPAttr, v uint64) { a.DestQPN = uint32(v) }},
	"max_rd_atomic":      {8, ib.QPMaskMaxRDAtomic, func(a *nic.QPAttr, v uint64) { a.MaxRDAtomic = uint8(v) }},
	"max_dest_rd_atomic": {8, ib.QPMaskMaxDestRDAtomic, func(a *nic.QPAttr, v uint64) { a.MaxDestRDAtomic = uint8(v) }},
	"min_rnr_timer":      {8, ib.QPMaskMinRNRTimer, func(a *nic.QPAttr, v uint64) { a.MinRNRTimer = uint8(v) }},
	"timeout":            {8, ib.QPMaskTimeout, func(a *nic.QPAttr, v uint64) { a.Timeout = uint8(v) }},
	"retry_cnt":          {8, ib.QPMaskRetryCount, func(a *nic.QPAttr, v uint64) { a.RetryCount = uint8(v) }},
	"rnr_retry":          {8, ib.QPMaskRNRRetry, func(a *nic.QPAttr, v uint64) { a.RNRRetry = uint8(v) }},
	"qkey":               {32, ib.QPMaskQKey, func(a *nic.QPAttr, v uint64) { a.QKey = uint32(v) }},
	"pkey_index":         {16, ib.QPMaskPKeyIndex, func(a *nic.QPAttr, v uint64) { a.PKeyIndex = int(v) }},
	"tclass":             {8, ib.QPMaskAV, func(a *nic.QPAttr, v uint64) { a.AV.TClass = uint8(v) }},
	"hop_limit":          {8, ib.QPMaskAV, func(a *nic.QPAttr, v uint64) { a.AV.HopLimit = uint8(v) }},
	"sl":                 {8, ib.QPMaskAV, func(a *nic.QPAttr, v uint64) { a.AV.SL = uint8(v) }},
	"flow_label":         {20, ib.QPMaskAV, func(a *nic.QPAttr, v uint64) { a.AV.FlowLabel = uint32(v) }},
}

// parseAttributes parses the options that are attributes.
func parseAttributes(args *arguments, a *nic.QPAttr) (mask ib.QPAttrMask, err error) {
	for name, o := range attrOptions {
		v, ok := args.option(name)
		if !ok {
			continue
		}
		n, err := parseNumber(v, o.bits)
		if err != nil {
			return 0, fmt.Errorf("%s=%s: %w", name, v, err)
		}
		o.set(a, n)
		mask |= o.mask
	}
	if v, ok := args.option("access"); ok {
		if a.Access, err = parseAccess(v); err != nil {
			return 0, err
		}
		mask |= ib.QPMaskAccess
	}
	return mask, nil
}
