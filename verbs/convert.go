package verbs

import "softroce/internal/abi"

func (a *AHAttr) abi() abi.AHAttr {
	return abi.AHAttr{
		DGID: a.GRH.DGID, FlowLabel: a.GRH.FlowLabel, SGIDIndex: a.GRH.SGIDIndex, HopLimit: a.GRH.HopLimit,
		TrafficClass: a.GRH.TrafficClass, DLID: a.DLID, SL: a.SL, StaticRate: a.StaticRate,
		IsGlobal: 1, PortNum: port(a.PortNum),
	}
}

func ahAttr(a abi.AHAttr) AHAttr {
	return AHAttr{
		GRH: GlobalRoute{
			DGID: a.DGID, FlowLabel: a.FlowLabel, SGIDIndex: a.SGIDIndex, HopLimit: a.HopLimit, TrafficClass: a.TrafficClass,
		},
		DLID: a.DLID, SL: a.SL, StaticRate: a.StaticRate, PortNum: a.PortNum,
	}
}

// port returns the port number n; 0 is port 1, the only port.
func port(n uint8) uint8 { return max(n, 1) }

func (c QPCap) abi() abi.QPCap {
	return abi.QPCap{
		MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE,
		MaxInlineData: c.MaxInlineData,
	}
}

func qpCap(c abi.QPCap) QPCap {
	return QPCap{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInlineData}
}

func (a *QPAttr) abi() abi.QPAttr {
	return abi.QPAttr{
		State: uint32(a.QPState), CurState: uint32(a.CurQPState), PathMTU: uint32(a.PathMTU), QKey: a.QKey,
		RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPN: a.DestQPNum, AccessFlags: uint32(a.QPAccessFlags),
		Cap: a.Cap.abi(), AH: a.AHAttr.abi(), PKeyIndex: a.PKeyIndex, EnSQDAsyncNotify: bit(a.EnSQDAsyncNotify),
		MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer,
		PortNum: port(a.PortNum), Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, RateLimit: a.RateLimit,
	}
}

func qpAttr(a abi.QPAttr) QPAttr {
	return QPAttr{
		QPState: QPState(a.State), CurQPState: QPState(a.CurState), PathMTU: MTU(a.PathMTU), QKey: a.QKey,
		RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPN, QPAccessFlags: Access(a.AccessFlags),
		Cap: qpCap(a.Cap), AHAttr: ahAttr(a.AH), PKeyIndex: a.PKeyIndex, EnSQDAsyncNotify: a.EnSQDAsyncNotify != 0,
		SQDraining: a.SQDraining != 0, MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRNRTimer, PortNum: a.PortNum, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry,
		RateLimit: a.RateLimit,
	}
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// UnmarshalBinary decodes the layout of the attach ABI.
func (a *QPAttr) UnmarshalBinary(b []byte) error {
	var w abi.QPAttr
	if _, err := abi.Decode(b, &w); err != nil {
		return err
	}
	*a = qpAttr(w)
	return nil
}

// UnmarshalBinary decodes the layout of the attach ABI.
func (a *AHAttr) UnmarshalBinary(b []byte) error {
	var w abi.AHAttr
	if _, err := abi.Decode(b, &w); err != nil {
		return err
	}
	*a = ahAttr(w)
	return nil
}
