package scenario

import (
	"errors"
	"fmt"

	"softroce/internal/ib"
	"softroce/internal/testbed"
	"softroce/transport"
)

// In the script a memory window is a region: an address, a length and an R_Key, which it has after
// a bind.

// cmdMW allocates a memory window: mw NAME 1|2 [second] [pd=NAME].
func (s *script) cmdMW(args *arguments) error {
	n, err := s.parseSide(args)
	if err != nil {
		return err
	}
	name, t, err := nameAndNumber(args, "a type, 1 or 2")
	if err != nil {
		return err
	}
	pd, _ := args.option("pd")
	if err := errors.Join(args.end(), s.reserveName(name)); err != nil {
		return err
	}
	key, err := n.AllocMW(name, ib.MWType(t), pd)
	if err != nil {
		delete(s.names, name)
		return refused(err)
	}
	s.regions[name] = &region{Region: testbed.Region{RKey: key}, name: name, nic: n, window: ib.MWType(t)}
	return nil
}

// cmdFree deallocates a memory window: free NAME.
func (s *script) cmdFree(args *arguments) error {
	r, err := s.parseWindow(args)
	if err != nil {
		return err
	}
	return errors.Join(args.end(), refused(r.nic.DeallocMW(r.name)))
}

// cmdKey saves the current key, address and length of a memory region or window under another name:
// key NAME OF.
func (s *script) cmdKey(args *arguments) error {
	name, err := args.next("a name")
	if err != nil {
		return err
	}
	of, err := args.next("a memory region or window")
	if err != nil {
		return err
	}
	r := s.regions[of]
	if r == nil {
		return fmt.Errorf("no memory region %q", of)
	}
	if err := errors.Join(args.end(), s.reserveName(name)); err != nil {
		return err
	}
	is := *r
	s.regions[name] = &is
	return nil
}

func (s *script) parseWindow(args *arguments) (*region, error) {
	name, err := args.next("a memory window")
	if err != nil {
		return nil, err
	}
	r := s.regions[name]
	if r == nil || r.window == 0 {
		return nil, fmt.Errorf("no memory window %q", name)
	}
	return r, nil
}

// A binding holds the arguments of a bind: WINDOW PLACE [access=FLAGS], or WINDOW nothing to
// unbind.
type binding struct {
	window *region
	mr     string // name of the region
	bind   transport.Bind
	start  uint64 // first address of the window as packets specify it
	rkey   uint64 // of a type 2 window; the program chooses its low byte
}

// parseBindOptions parses the arguments of a bind.
func (s *script) parseBindOptions(args *arguments) (b binding, err error) {
	if b.window, err = s.parseWindow(args); err != nil {
		return b, err
	}
	b.bind.Access = accessFlags.values["all"] &^ ib.AccessLocalWrite
	if a, ok := args.option("access"); ok {
		if b.bind.Access, err = parseAccess(a); err != nil {
			return b, err
		}
	}
	b.rkey = uint64(b.window.RKey&^0xff | (b.window.RKey+1)&0xff)
	if err := args.number("rkey", 32, &b.rkey); err != nil {
		return b, err
	}
	at, err := args.next("a place in a memory region")
	if err != nil {
		return b, err
	}
	if at == "nothing" {
		return b, nil
	}
	p, err := s.parsePlace(at)
	if err != nil {
		return b, err
	}
	b.mr, b.bind.LKey, b.bind.Addr, b.bind.Length = p.region.name, p.region.LKey, p.addr, p.length
	if b.start = p.addr; b.bind.Access&ib.AccessZeroBased != 0 {
		b.start = 0
	}
	return b, nil
}

// postBind posts a bind. From then on the window's name refers to the new key.
func (s *script) postBind(q *queuePair, args *arguments, wr *transport.SendWR) error {
	b, err := s.parseBindOptions(args)
	if err != nil {
		return err
	}
	wr.Bind, wr.RKey = b.bind, uint32(b.rkey)
	more := args.flag("and")
	if err := args.end(); err != nil {
		return err
	}
	s.noteAction(more, false)
	key, err := q.nic.PostBind(q.name, b.window.name, b.mr, wr)
	if err != nil {
		return refused(err)
	}
	b.window.Region = testbed.Region{Addr: b.start, Size: int(b.bind.Length), RKey: key}
	q.sendIDs = max(q.sendIDs, wr.ID)
	s.commit(more)
	return nil
}
