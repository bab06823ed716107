package liveplay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"softroce/capture"
	"softroce/internal/ib"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
)

// ownQPNs is how many numbers the played queue pairs have, one for each side of a stream, before
// they are reused.
const ownQPNs = 64

// hopLimit is that of the packets that are sent.
const hopLimit = 64

// An endpoint is a queue pair of the live NIC with its memory, and the played queue pair connected
// to it.
type endpoint struct {
	target
	network packet.Network // of the packets, RoCEv2 or RoCEv1
	name    string         // of the queue pair on the live NIC
	qpn     uint32         // its number
	own     uint32         // the number of the played queue pair
	created bool
	memory  []string   // names of regions
	mws     []string   // names of windows
	path    *wire.Path // to the live NIC
	paths   map[pathKey]*wire.Path

	first int // packets in the recording before the stream
}

// A pathKey is what distinguishes the paths of a stream's packets.
type pathKey struct {
	port      uint16
	tclass    uint8
	flowLabel uint32
}

// newEndpoint returns an endpoint for packets that were captured from a network. What was captured
// from InfiniBand is played as RoCEv2. A connection has packets of one network, so the recording
// keeps no others.
func newEndpoint(st target, captured packet.Network) endpoint {
	network := packet.RoCEv2
	if captured == packet.RoCEv1 {
		network = captured
	}
	st.recording.network = network
	return endpoint{target: st, network: network, name: fmt.Sprint("onto", st.i), own: st.testbed.PeerQPN() + uint32(st.i%ownQPNs), paths: map[pathKey]*wire.Path{},
		first: len(st.recording.packets)}
}

// index returns the index in the session of the next packet.
func (s *endpoint) index() int { return len(s.recording.packets) - s.first }

// register registers memory on the live NIC's host. destroy deregisters it.
func (s *endpoint) register(name string, o testbed.RegionOptions) (testbed.Region, error) {
	r, err := s.nic.Register(name, o)
	if err == nil {
		s.memory = append(s.memory, name)
	}
	return r, err
}

// write has the program write to a region.
func (s *endpoint) write(name string, at uint64, data []byte) error {
	for b := range slices.Chunk(data, chunk) {
		if err := s.nic.WriteMemory(name, at, b); err != nil {
			return err
		}
		at += uint64(len(b))
	}
	return nil
}

// read returns the content of a region.
func (s *endpoint) read(name string, from, n uint64) ([]byte, error) {
	b := make([]byte, 0, n)
	for at := from; at < from+n; at += chunk {
		part, err := s.nic.ReadMemory(name, at, min(chunk, from+n-at))
		if err != nil {
			return nil, err
		}
		b = append(b, part...)
	}
	return b, nil
}

// connect creates the queue pair and takes it to RTR, and on to RTS if rts is set.
func (s *endpoint) connect(service packet.Service, a ib.QPAttr, rts bool) (err error) {
	of, rtrOnly, rtsOnly := ib.QPTypeRC, ib.QPMaskMaxDestRDAtomic|ib.QPMaskMinRNRTimer,
		ib.QPMaskTimeout|ib.QPMaskRetryCount|ib.QPMaskRNRRetry|ib.QPMaskMaxRDAtomic
	if service == packet.UC {
		of, rtrOnly, rtsOnly = ib.QPTypeUC, 0, 0
	}
	sgid, err := s.nic.GID(0, s.network)
	if err != nil {
		return err
	}
	if s.qpn, err = s.nic.CreateQP(s.name, testbed.QPOptions{Type: of}); err != nil {
		return err
	}
	s.created = true
	a.State, a.DestQPN = ib.QPSInit, s.own
	q := nic.QPAttr{QPAttr: a, AV: nic.AddressVector{SGIDIndex: sgid, Port: 1, HopLimit: hopLimit, DGID: nic.GIDOf(s.testbed.Peer())}, Port: 1}
	if err := s.nic.ModifyQP(s.name, q, ib.QPMaskState|ib.QPMaskPKeyIndex|ib.QPMaskPort|ib.QPMaskAccess); err != nil {
		return err
	}
	q.State = ib.QPSRTR
	if err := s.nic.ModifyQP(s.name, q, ib.QPMaskState|ib.QPMaskAV|ib.QPMaskPathMTU|ib.QPMaskDestQPN|
		ib.QPMaskRQPSN|rtrOnly); err != nil {
		return fmt.Errorf("the live NIC refuses a queue pair with path MTU %d: %w", a.PathMTU, err)
	}
	if rts {
		q.State = ib.QPSRTS
		if err := s.nic.ModifyQP(s.name, q, ib.QPMaskState|ib.QPMaskSQPSN|rtsOnly); err != nil {
			return fmt.Errorf("the live NIC refuses a queue pair with %d READs and atomics at once: %w", a.MaxRDAtomic, err)
		}
	}
	s.path, err = s.testbed.Path(s.nic.Addr())
	return err
}

// addresses returns the played queue pair and the live one.
func (s *endpoint) addresses() (player, peer replay.End) {
	return replay.End{Addr: s.testbed.Peer(), QPN: s.own, Known: true}, replay.End{Addr: s.nic.Addr(), QPN: s.qpn, Known: true}
}

// transmit sends a packet on the path of a captured one.
func (s *endpoint) transmit(c *capture.Packet, h packet.Header) error {
	h.DestQP, h.PKey = s.qpn, packet.DefaultPKey
	f := &wire.TxFrame{Path: s.pathOf(c)}
	f.Set(&h, c.Payload)
	if err := s.testbed.Send(f); err != nil {
		return err
	}
	s.testbed.Run(s.testbed.Now(), nil)
	return nil
}

// pathOf returns the path of a packet with the source port and traffic class of a captured one, or
// in RoCE v1 its flow label and traffic class.
func (s *endpoint) pathOf(c *capture.Packet) *wire.Path {
	k := pathKey{port: c.SrcPort, tclass: c.TClass}
	if s.network == packet.RoCEv1 {
		k = pathKey{flowLabel: c.FlowLabel, tclass: c.TClass}
	}
	if s.paths[k] == nil {
		way := *s.path
		way.Network, way.SrcPort, way.TClass, way.FlowLabel, way.HopLimit = s.network, k.port, k.tclass, k.flowLabel, hopLimit
		s.paths[k] = &way
	}
	return s.paths[k]
}

// destroy destroys the live NIC's objects.
func (s *endpoint) destroy() (err error) {
	s.recording.onPacket = nil
	if s.created {
		err = s.nic.DestroyQP(s.name)
	}
	for _, m := range s.mws {
		err = errors.Join(err, s.nic.DeallocMW(m))
	}
	for _, m := range s.memory {
		err = errors.Join(err, s.nic.Deregister(m))
	}
	return err
}

// linger waits for something that may not happen.
func (s *endpoint) linger(t time.Duration, done func() bool) {
	if !done() {
		s.testbed.Run(s.testbed.Now()+t, done)
	}
}
