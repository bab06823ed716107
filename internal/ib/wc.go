package ib

import "fmt"

// WCStatus is the result of a work request: enum ibv_wc_status.
type WCStatus uint32

// Statuses.
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

var wcStatusNames = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "work request flushed", "memory window bind error", "bad response",
	"local access error", "remote invalid request", "remote access error", "remote operation error",
	"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation",
	"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout", "general error",
}

// WCStatuses are the statuses of the transports that are implemented, by their names in enum
// ibv_wc_status without the prefix IBV_WC.
var WCStatuses = map[string]WCStatus{
	"SUCCESS": WCSuccess, "LOC_LEN_ERR": WCLocLenErr, "LOC_QP_OP_ERR": WCLocQPOpErr,
	"LOC_PROT_ERR": WCLocProtErr, "WR_FLUSH_ERR": WCWRFlushErr, "MW_BIND_ERR": WCMWBindErr,
	"BAD_RESP_ERR": WCBadRespErr, "LOC_ACCESS_ERR": WCLocAccessErr, "REM_INV_REQ_ERR": WCRemInvReqErr,
	"REM_ACCESS_ERR": WCRemAccessErr, "REM_OP_ERR": WCRemOpErr, "RETRY_EXC_ERR": WCRetryExcErr,
	"RNR_RETRY_EXC_ERR": WCRNRRetryExcErr, "REM_ABORT_ERR": WCRemAbortErr, "FATAL_ERR": WCFatalErr,
	"RESP_TIMEOUT_ERR": WCRespTimeoutErr, "GENERAL_ERR": WCGeneralErr,
}

func (s WCStatus) String() string {
	if int(s) < len(wcStatusNames) {
		return wcStatusNames[s]
	}
	return fmt.Sprintf("WCStatus(%d)", uint32(s))
}

// WCOpcode is the operation that completed: enum ibv_wc_opcode. It is valid only with WCSuccess.
type WCOpcode uint32

// Completed operations.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

var wcOpcodeNames = map[WCOpcode]string{
	WCSend: "SEND", WCRDMAWrite: "RDMA_WRITE", WCRDMARead: "RDMA_READ", WCCompSwap: "COMP_SWAP", WCFetchAdd: "FETCH_ADD",
	WCBindMW: "BIND_MW", WCLocalInv: "LOCAL_INV", WCFlush: "FLUSH", WCAtomicWrite: "ATOMIC_WRITE",
	WCRecv: "RECV", WCRecvRDMAWithImm: "RECV_RDMA_WITH_IMM",
}

func (o WCOpcode) String() string {
	if s, ok := wcOpcodeNames[o]; ok {
		return s
	}
	return fmt.Sprintf("WCOpcode(%d)", uint32(o))
}

// WCFlags qualify a completion: enum ibv_wc_flags.
type WCFlags uint32

// Bits of WCFlags.
const (
	WCGRH     WCFlags = 1 << 0 // the first 40 bytes of the receive buffer are the GRH
	WCWithImm WCFlags = 1 << 1 // the completion has immediate data
	WCWithInv WCFlags = 1 << 3 // the completion has the R_Key that was invalidated
)
