package replay

import (
	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// A capturedRequester is the mode of a requesterModel for a captured requester, whose timing is not
// judged.
type capturedRequester struct{ r *requesterModel }

func (capturedRequester) service() packet.Service                            { return packet.RC }
func (capturedRequester) attributes(*ib.QPAttr)                              {}
func (capturedRequester) placeResults(*work) error                           { return nil }
func (capturedRequester) compared(*conversation.Transmission)                {}
func (capturedRequester) delivered(*conversation.Transmission, int64, int64) {}
func (capturedRequester) skipped(*conversation.Transmission)                 {}
func (capturedRequester) mayCross(*conversation.Transmission) bool           { return false }
func (capturedRequester) ignoresNAK(_, _ *conversation.Transmission) bool    { return false }
func (capturedRequester) waitsForRNR(*conversation.Transmission) bool        { return false }
func (capturedRequester) hasGoneBack() bool                                  { return false }
func (capturedRequester) judgeRNRWait(*conversation.Transmission)            {}
func (capturedRequester) judgeGoBack(*conversation.Transmission)             {}
func (capturedRequester) judgeTimeout(*conversation.Transmission)            {}
func (capturedRequester) judgeUnneeded(*conversation.Transmission)           {}
func (capturedRequester) judgeAfterEnd(*conversation.Transmission)           {}

// refusalStatus is the completion status of a work request that a NAK refuses.
var refusalStatus = map[packet.Syndrome]ib.WCStatus{
	packet.NAKInvalidRequest:    ib.WCRemInvReqErr,
	packet.NAKRemoteAccess:      ib.WCRemAccessErr,
	packet.NAKRemoteOperational: ib.WCRemOpErr,
	packet.NAKInvalidRD:         ib.WCRemOpErr,
}

// completed implements requesterMode. The captured requester continues after retries that exhaust
// softroce's. Another error is a difference unless a NAK caused it.
func (m capturedRequester) completed(c *transport.Completion) {
	e := m.r.reply
	switch {
	case c.Status == ib.WCRetryExcErr:
		m.r.v.deviate(deviationForever, m.r.current)
	case e == nil, c.Status == ib.WCSuccess, c.Status == ib.WCWRFlushErr:
	case e.Info.Kind != packet.KindAck || refusalStatus[e.AETH.Syndrome] != c.Status:
		m.r.v.differ(e, "reply", "accepted by the requester", "ends the connection: "+c.Status.String())
	}
}

// A lossCollector is a capturedRequester that collects the replies that the captured requester
// cannot have received.
type lossCollector struct {
	capturedRequester
	lost map[*conversation.Transmission]bool
}

// skipped implements requesterMode.
func (m *lossCollector) skipped(e *conversation.Transmission) { m.lost[e] = true }
