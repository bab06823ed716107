package scenario

import (
	"errors"
	"fmt"

	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/wire"
)

// peerUDPPort is the UDP source port of the script's packets.
const peerUDPPort = 0xc123

// cmdInject builds a packet and sends it to the NIC of a queue pair, as its peer would:
//
//	inject QP OPCODE [FIELD=VALUE]… [payload=DATA | payload_len=N] [icrc=bad] [cut=N] [src=ADDRESS] [to=ADDRESS] [tclass=N]
//	       [vlan=N] [priority=N] [src_port=N] [roce=v1|v2] [cable=LINK [FRAME-FIELD=VALUE]…] [and] [aside]
func (s *script) cmdInject(args *arguments) error {
	q, err := s.parseQP(args)
	if err != nil {
		return err
	}
	name, err := args.next("an opcode")
	if err != nil {
		return err
	}
	op, err := parseOpcode(name, q.typ)
	if err != nil {
		return err
	}
	more, aside := args.flag("and"), args.flag("aside")
	edit, err := s.parseFrameEdit(args)
	if err != nil {
		return err
	}
	f, err := s.peerPacket(args, q, op)
	if err != nil {
		return err
	}
	if err := args.end(); err != nil {
		return err
	}
	if edit != nil {
		b, err := edit.build(f)
		if err != nil {
			return err
		}
		return s.sendFrame(edit.kind, b, more, aside)
	}
	s.noteAction(more, aside)
	if h, ok := s.testbed.(testbed.Batcher); ok && more {
		h.Hold(f)
	} else if err := s.testbed.Send(f); err != nil {
		return err
	}
	s.commit(more)
	return nil
}

func (s *script) parseQP(args *arguments) (*queuePair, error) {
	name, err := args.next("a queue pair")
	if err != nil {
		return nil, err
	}
	return s.qp(name)
}

// peerPacket builds a packet for q.
func (s *script) peerPacket(args *arguments, q *queuePair, op packet.Opcode) (*wire.TxFrame, error) {
	path, err := s.peerPath(args, q)
	if err != nil {
		return nil, err
	}
	payload, err := parsePayload(args)
	if err != nil {
		return nil, err
	}
	bad := false
	if v, ok := args.option("icrc"); ok {
		if bad = v == "bad"; !bad {
			return nil, fmt.Errorf("icrc=%s: want bad", v)
		}
	}
	cut := uint64(0)
	if err := args.number("cut", 16, &cut); err != nil {
		return nil, err
	}
	f := &wire.TxFrame{Path: path}
	if err := s.peerHeader(args, q, op, payload, f); err != nil {
		return nil, err
	}
	if cut > 0 {
		truncate(f, int(cut))
	}
	if bad {
		f.Flip = uint32(8*f.Len) + 1 // the first bit of the ICRC
	}
	return f, nil
}

// peerHeader fills in the headers of a packet: the values that an ordinary peer would send,
// overridden by those of the script.
func (s *script) peerHeader(args *arguments, q *queuePair, op packet.Opcode, payload []byte, f *wire.TxFrame) error {
	in := op.Info()
	h := packet.Header{BTH: packet.BTH{Opcode: op, PKey: packet.DefaultPKey, DestQP: q.qpn}}
	h.AckReq = in.Request && in.Position.EndsMessage() && (in.Service == packet.RC || in.Service == packet.XRC)
	h.AETH.Syndrome = packet.SyndromeACK | packet.CreditsUnlimited
	h.RETH = packet.RETH{Length: uint32(len(payload))}
	h.DETH = packet.DETH{QKey: q.attr.QKey, SrcQP: q.peerQPN}
	options, err := s.expand(args.options)
	if err != nil {
		return err
	}
	args.options = nil
	set := func() error {
		for _, o := range options {
			fd := fieldNamed(o.name)
			if fd == nil {
				return fmt.Errorf("unknown field %q", o.name)
			}
			if err := fd.check(op); err != nil {
				return err
			}
			v, _, err := s.fieldValue(fd, o.value)
			if err != nil {
				return err
			}
			fd.at(&h).set(v)
		}
		return nil
	}
	if err := set(); err != nil {
		return err
	}
	f.Set(&h, payload)
	// A pad count from the script replaces the correct one, but does not change the bytes.
	err = set()
	h.Put(f.Head[:])
	return err
}

func (s *script) peerPath(args *arguments, q *queuePair) (*wire.Path, error) {
	to := q.nic.Addr()
	if v, ok := args.option("to"); ok {
		var err error
		if to, err = s.parseAddress(v); err != nil {
			return nil, err
		}
	}
	p, err := s.testbed.Path(to)
	if err != nil {
		return nil, err
	}
	if p.Network, err = parseRoCE(args, q.network); err != nil {
		return nil, err
	}
	if v, ok := args.option("src"); ok {
		if p.Src, err = s.parseAddress(v); err != nil {
			return nil, err
		}
		if !p.FamiliesMatch() || p.Src.Is4In6() {
			return nil, fmt.Errorf("src=%s: %v has another address family", v, p.Dst)
		}
	}
	tclass, hops, vlan, priority := uint64(0), uint64(64), uint64(q.vlan), uint64(0)
	port := uint64(peerUDPPort)
	err = errors.Join(args.number("tclass", 8, &tclass), args.number("hop_limit", 8, &hops), args.number("vlan", 12, &vlan),
		args.number("priority", 3, &priority), args.number("src_port", 16, &port))
	p.SrcPort, p.TClass, p.HopLimit, p.VLAN, p.Priority = uint16(port), uint8(tclass), uint8(hops), uint16(vlan), uint8(priority)
	return p, err
}

// parsePayload parses payload=DATA or payload_len=N, which means N times x.
func parsePayload(args *arguments) ([]byte, error) {
	if d, ok := args.option("payload"); ok {
		return parseData(d)
	}
	if n, ok := args.option("payload_len"); ok {
		return parseData(n + "*x")
	}
	return nil, nil
}

// truncate keeps the first n bytes, counted from the BTH.
func truncate(f *wire.TxFrame, n int) {
	if n >= f.Len {
		return
	}
	if n <= int(f.HeadLen) {
		f.HeadLen, f.Payload, f.Pad, f.Len = uint8(n), nil, 0, n
		return
	}
	if room := n - int(f.HeadLen); len(f.Payload) > 0 && room < len(f.Payload[0]) {
		f.Payload[0] = f.Payload[0][:room]
	}
	f.Pad, f.Len = 0, n
}
