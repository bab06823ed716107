package nic

import (
	"cmp"

	"softroce/internal/abi"
	"softroce/transport"
)

// Limits are the most objects of one device: what ibv_query_device reports and the verbs enforce. A
// field of 0 means its value in DefaultLimits.
type Limits struct {
	MaxQP          int    `json:"max_qp"`
	MaxQPWR        int    `json:"max_qp_wr"` // work requests on a send or receive queue
	MaxSGE         int    `json:"max_sge"`
	MaxInline      int    `json:"max_inline_data"` // bytes
	MaxCQ          int    `json:"max_cq"`
	MaxCQE         int    `json:"max_cqe"`
	MaxMR          int    `json:"max_mr"`
	MaxPD          int    `json:"max_pd"`
	MaxAH          int    `json:"max_ah"`
	MaxSRQ         int    `json:"max_srq"`
	MaxSRQWR       int    `json:"max_srq_wr"`
	MaxSRQSGE      int    `json:"max_srq_sge"`
	MaxMcastGroups int    `json:"max_mcast_grp"`
	MaxMcastQPs    int    `json:"max_mcast_qp_attach"` // of one user, per group
	MaxMW          int    `json:"max_mw"`
	MaxXRCD        int    `json:"max_xrcd"`
	MaxRDAtomic    int    `json:"max_qp_rd_atom"` // outstanding READs and atomics that a QP executes
	MaxContexts    int    `json:"max_contexts"`
	MaxDM          uint64 `json:"max_dm_size"` // bytes of device memory, of all contexts
	GIDTableSize   int    `json:"gid_tbl_len"`
	MaxPKeys       int    `json:"max_pkeys"`   // entries of the P_Key table
	MaxMRSize      uint64 `json:"max_mr_size"` // bytes

	MaxInitRDAtomic  int `json:"max_qp_init_rd_atom"`       // outstanding READs and atomics that a QP sends; 0: MaxRDAtomic
	MaxReadSGE       int `json:"max_sge_rd"`                // of a READ; 0, or more: MaxSGE
	MaxMcastAttached int `json:"max_total_mcast_qp_attach"` // of all groups; 0, or more: as many as MaxMcastGroups of MaxMcastQPs

	// These are reported only.
	MaxResRDAtomic int    `json:"max_res_rd_atom"`    // READs and atomics that all QPs execute; 0, or more: as many as MaxQP of MaxRDAtomic
	PageSizes      uint64 `json:"page_size_cap"`      // of memory: each bit is that size in bytes
	LocalACKDelay  int    `json:"local_ca_ack_delay"` // code: 4.096 µs * 2^n, until the NIC responds

	Context ContextLimits `json:"context"` // of each context without limits of its own
}

// ContextLimits are the most objects of one client, so that it cannot starve others. A field of 0
// means the device's limit.
type ContextLimits struct {
	QPs             int    `json:"qps"`
	CQs             int    `json:"cqs"`
	MRs             int    `json:"mrs"`
	PDs             int    `json:"pds"`
	AHs             int    `json:"ahs"`
	SRQs            int    `json:"srqs"`
	Groups          int    `json:"groups"` // attachments of QPs to multicast groups
	MWs             int    `json:"mws"`
	XRCDs           int    `json:"xrcds"`
	RegisteredBytes uint64 `json:"registered_bytes"`
	RingBytes       uint64 `json:"ring_bytes"`
	DeviceMemory    uint64 `json:"device_memory"` // bytes
}

// DefaultLimits are the limits of the Linux Soft-RoCE driver, or higher where programs need more.
var DefaultLimits = Limits{
	MaxQP:          1 << 20,
	MaxQPWR:        32768,
	MaxSGE:         32,
	MaxInline:      1024,
	MaxCQ:          1 << 20,
	MaxCQE:         1 << 22,
	MaxMR:          1<<19 - 1,
	MaxPD:          1 << 20,
	MaxAH:          1 << 20,
	MaxSRQ:         1 << 20,
	MaxSRQWR:       32768,
	MaxSRQSGE:      32,
	MaxMcastGroups: 8192,
	MaxMcastQPs:    56,
	MaxMW:          1<<19 - 1,
	MaxXRCD:        1 << 16,
	MaxRDAtomic:    transport.MaxRDAtomic,
	MaxContexts:    4096,
	GIDTableSize:   256, // SGID indices have eight bits
	MaxPKeys:       abi.MaxPKeys,
	MaxDM:          64 << 20,
	MaxMRSize:      1<<63 - 1,

	MaxInitRDAtomic:  transport.MaxRDAtomic,
	MaxReadSGE:       32,
	MaxMcastAttached: 8192 * 56,

	MaxResRDAtomic: transport.MaxRDAtomic << 20,
	PageSizes:      0xfffff000,
	LocalACKDelay:  15, // what a loaded machine may need
}

// MaxLocalACKDelay is the highest LocalACKDelay: the code has five bits.
const MaxLocalACKDelay = 31

// Limits that cannot be configured.
const (
	maxMessage      = transport.MaxMessage
	firstQPN        = 0x11 // lower QPNs are special; the Linux driver starts here too
	lastQPN         = 0xfffffe
	maxDeviceMemory = 1 << 40 // bytes
)

// granted returns the limits of what is granted to those who ask within l: rings have a power of
// two of slots.
func (l Limits) granted() Limits {
	l.MaxQPWR, l.MaxSRQWR, l.MaxCQE = roundSlots(l.MaxQPWR), roundSlots(l.MaxSRQWR), roundSlots(l.MaxCQE)
	return l
}

// withDefaults returns l with the fields that are 0 set to their defaults.
func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&l.MaxQP, d.MaxQP)
	set(&l.MaxQPWR, d.MaxQPWR)
	set(&l.MaxSGE, d.MaxSGE)
	set(&l.MaxInline, d.MaxInline)
	set(&l.MaxCQ, d.MaxCQ)
	set(&l.MaxCQE, d.MaxCQE)
	set(&l.MaxMR, d.MaxMR)
	set(&l.MaxPD, d.MaxPD)
	set(&l.MaxAH, d.MaxAH)
	set(&l.MaxSRQ, d.MaxSRQ)
	set(&l.MaxSRQWR, d.MaxSRQWR)
	set(&l.MaxSRQSGE, d.MaxSRQSGE)
	set(&l.MaxMcastGroups, d.MaxMcastGroups)
	set(&l.MaxMcastQPs, d.MaxMcastQPs)
	set(&l.MaxMW, d.MaxMW)
	set(&l.MaxXRCD, d.MaxXRCD)
	set(&l.MaxRDAtomic, d.MaxRDAtomic)
	set(&l.MaxContexts, d.MaxContexts)
	set(&l.GIDTableSize, d.GIDTableSize)
	set(&l.MaxPKeys, d.MaxPKeys)
	l.MaxDM = min(cmp.Or(l.MaxDM, d.MaxDM), maxDeviceMemory)
	l.MaxMRSize = min(cmp.Or(l.MaxMRSize, d.MaxMRSize), d.MaxMRSize)
	l.MaxSGE = min(l.MaxSGE, DefaultLimits.MaxSGE) // with more, Engine.sges would grow
	l.MaxSRQSGE = min(l.MaxSRQSGE, DefaultLimits.MaxSRQSGE)
	l.MaxInline = min(l.MaxInline, DefaultLimits.MaxInline)
	l.MaxRDAtomic = min(l.MaxRDAtomic, transport.MaxRDAtomic)
	l.MaxPKeys = min(l.MaxPKeys, abi.MaxPKeys)
	set(&l.MaxInitRDAtomic, l.MaxRDAtomic)
	l.MaxInitRDAtomic = min(l.MaxInitRDAtomic, transport.MaxRDAtomic)
	set(&l.MaxMcastAttached, l.MaxMcastGroups*l.MaxMcastQPs)
	l.MaxMcastAttached = min(l.MaxMcastAttached, l.MaxMcastGroups*l.MaxMcastQPs)
	set(&l.MaxReadSGE, l.MaxSGE)
	l.MaxReadSGE = min(l.MaxReadSGE, l.MaxSGE)
	set(&l.MaxResRDAtomic, l.MaxQP*l.MaxRDAtomic)
	l.MaxResRDAtomic = min(l.MaxResRDAtomic, l.MaxQP*l.MaxRDAtomic)
	l.PageSizes = cmp.Or(l.PageSizes&d.PageSizes, d.PageSizes)
	l.LocalACKDelay = min(max(l.LocalACKDelay, d.LocalACKDelay), MaxLocalACKDelay)
	return l
}
