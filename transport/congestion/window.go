package congestion

// A Window limits the unacknowledged packets of one queue pair. It is at its largest until packets
// are lost. Then it decreases with each loss, and increases with what is acknowledged (AIMD).
type Window struct {
	most      uint64 // largest size, in packets
	limit     uint64 // of a Controller, in packets
	size      uint64
	threshold uint64 // below it the size doubles in a round trip
	acked     uint64 // packets acknowledged since the size last increased by one
}

// Sizes and increases of a window, in packets.
const (
	// MinWindow is the smallest window after a loss: hundreds of senders may share a queue. The
	// second packet shows the responder that the first is lost.
	MinWindow = 2

	// restartWindow is the largest window after a local ACK timeout. A peer that does not reply may
	// be busy, or a queue on the path may be full.
	restartWindow = 16

	// growth is after how many acknowledged packets the window grows by one where no queue is
	// known. A chance p of loss halves the window every 1/p packets, so that it stays near
	// 2/(p*growth): 50 packets at 1 %, half of which are sent again for each loss.
	growth = 4
)

// NewWindow returns the window of a queue pair that has lost nothing.
func NewWindow(most uint64) Window {
	return Window{most: most, limit: most, size: most, threshold: most}
}

// Size returns how many packets may be unacknowledged.
func (w *Window) Size() uint64 { return min(w.size, w.limit) }

// Limit sets how many packets a Controller allows, whatever losses do to the window.
func (w *Window) Limit(n uint64) { w.limit = n }

// Reduced reports whether losses have reduced the window.
func (w *Window) Reduced() bool { return w.size < w.most }

// Acknowledged increases the window after n packets were acknowledged. Where packets wait in a
// queue, a larger window only makes the queue longer: it grows by one packet in a round trip, so
// that many senders come to share the queue evenly.
func (w *Window) Acknowledged(n uint64, queued bool) {
	if !w.Reduced() {
		return
	}
	if w.size < w.threshold {
		w.size = min(w.size+n, w.threshold)
		return
	}
	each := uint64(growth)
	if queued {
		each = w.size
	}
	w.acked += n
	w.size = min(w.size+w.acked/each, w.most)
	w.acked %= each
}

// Lost halves the window after a loss among the packets in flight. All of them are sent again,
// which thus stays in proportion to what arrives.
func (w *Window) Lost(flight uint64) {
	w.size = max(min(w.size, flight)/2, MinWindow)
	w.threshold, w.acked = w.size, 0
}

// TimedOut reduces the window after a local ACK timeout.
func (w *Window) TimedOut(flight uint64) {
	size := min(w.size, restartWindow)
	w.Lost(flight)
	w.size = size
}
