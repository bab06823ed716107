package wire

import "softroce/packet"

// A run is a frame that stands for several packets: see packet.Run. Its payload is one slice.
// Between two NICs of one engine a fabric passes it as one frame, so that the packets of a long
// message cost little more than one of them. Whatever looks at single packets gets these: a
// link that sends them elsewhere, a capture and a fault program divide runs that they are to send,
// and a receiver that does not ask for runs gets none.

// A RunCarrier is a link between NICs of one engine, or middleware around one. Its Send takes runs
// of any path.
type RunCarrier interface {
	// CarriesRuns reports whether Send passes runs with this path on undivided. Later it may have
	// to divide them: a capture may have begun, or another engine's NIC have the address.
	CarriesRuns(*Path) bool

	// ReceiveRuns is Link.Receive, but does not divide runs.
	ReceiveRuns(now int64, batch []RxFrame) (int, error)
}

// CarriesRuns reports whether runs with this path may be sent through l.
func CarriesRuns(l Link, p *Path) bool {
	c, ok := l.(RunCarrier)
	return ok && c.CarriesRuns(p)
}

// ReceiveRuns receives from l, runs undivided if possible.
func ReceiveRuns(l Link, now int64, batch []RxFrame) (int, error) {
	if c, ok := l.(RunCarrier); ok {
		return c.ReceiveRuns(now, batch)
	}
	return l.Receive(now, batch)
}

// part returns the payload of packet k of a run of n.
func part(payload []byte, k, n int) []byte {
	size := len(payload) / n
	return payload[k*size : (k+1)*size : (k+1)*size]
}

// setPacket makes f packet k of a run.
func (f *TxFrame) setPacket(run *TxFrame, k int) {
	payload := f.Payload[:0]
	*f = *run
	f.Payload = append(payload, part(run.Payload[0], k, run.Run.Packets()))
	f.Run = packet.Run{}
	f.setHeader(run, k)
}

// skip removes the first k packets of a run, which has more.
func (f *TxFrame) skip(k int) {
	if k == 0 {
		return
	}
	f.setHeader(f, k)
	f.Payload[0] = f.Payload[0][k*(len(f.Payload[0])/f.Run.Packets()):]
	f.Run.Repeat -= uint16(k)
	f.Run.Ends = f.Run.Ends && f.Run.Repeat > 0
}

// setHeader gives f the headers of packet k of a run, which may be f, and the length of that
// packet.
func (f *TxFrame) setHeader(run *TxFrame, k int) {
	n := run.Run.Header(f.Head[:], run.Head[:run.HeadLen], k)
	f.Len += n - int(f.HeadLen)
	f.HeadLen = uint8(n)
}

// IPBytes returns the length of the frame's IP packets, of which a run has several. Those after the
// first one have no extended headers.
func (f *TxFrame) IPBytes() int {
	n := f.IPLen()
	return n + int(f.Run.Repeat)*(n-int(f.HeadLen)+packet.BTHLen)
}

// A RunPart is the storage of one packet of a received run.
type RunPart struct {
	head [packet.MaxHeaderLen]byte
	tail [1][]byte
}

// Packet returns packet k of the run f. It refers to p.
func (p *RunPart) Packet(f *RxFrame, k int) RxFrame {
	r := *f
	r.Head = p.head[:f.Run.Header(p.head[:], f.Head, k)]
	p.tail[0] = part(f.Tail[0], k, f.Run.Packets())
	r.Tail, r.Run = p.tail[:], packet.Run{}
	r.ID += uint16(k)
	return r
}

// dividedBatch is how many packets of a run are sent at a time.
const dividedBatch = 16

// A runDivider sends the packets of runs as single frames.
type runDivider struct{ frames []TxFrame }

func hasRuns(batch []TxFrame) bool {
	for i := range batch {
		if batch[i].Run.Repeat > 0 {
			return true
		}
	}
	return false
}

// sendAll is send for frames some of which are runs. If it takes a part of a run, the rest stays in
// the frame.
func (s *runDivider) sendAll(now int64, batch []TxFrame, send func(int64, []TxFrame) (int, error)) (int, error) {
	for i := 0; i < len(batch); {
		j := i
		for j < len(batch) && batch[j].Run.Repeat == 0 {
			j++
		}
		if j > i {
			n, err := send(now, batch[i:j])
			if i += n; i < j || err != nil {
				return i, err
			}
			continue
		}
		done, err := s.send(now, &batch[i], send)
		if done {
			i++
		}
		if !done || err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// send sends a run, and reports whether all of it was taken.
func (s *runDivider) send(now int64, run *TxFrame, send func(int64, []TxFrame) (int, error)) (done bool, err error) {
	if s.frames == nil {
		s.frames = make([]TxFrame, dividedBatch)
	}
	for {
		n := min(run.Run.Packets(), len(s.frames))
		for k := range n {
			s.frames[k].setPacket(run, k)
		}
		sent, err := send(now, s.frames[:n])
		if sent == run.Run.Packets() {
			return true, err
		}
		run.skip(sent)
		if sent < n || err != nil {
			return false, err
		}
	}
}
