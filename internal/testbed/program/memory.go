package program

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"softroce/verbs"
)

// pd returns the protection domain of a name and allocates it on first use.
func (s *session) pd(name string) (*verbs.PD, error) {
	if p := s.pds[name]; p != nil {
		return p, nil
	}
	p, err := s.nic.AllocPD(context.Background())
	if err == nil {
		s.pds[name] = p
	}
	return p, err
}

// maxSize bounds a region, in bytes.
const maxSize = 1 << 30

// mr NAME SIZE FILL ACCESS PD OF
func (s *session) mr(w request) (string, error) {
	pd, err := s.pd(w.text(5))
	if err != nil {
		return "", err
	}
	if w.text(1) == "-" {
		return "", errors.New("the region has no name")
	}
	r := &region{}
	size := w.number(2)
	if size > maxSize {
		return "", fmt.Errorf("size %d: want at most %d", size, maxSize)
	}
	if of := s.mrs[w.text(6)]; of != nil {
		if size > uint64(len(of.mem)) {
			return "", fmt.Errorf("the memory of %s has %d bytes", w.text(6), len(of.mem))
		}
		r.mem = of.mem
	} else if r.mem, err = s.mmap(int(size), byte(w.number(3))); err != nil {
		return "", err
	}
	if r.mr, err = pd.RegMR(context.Background(), r.mem[:size], verbs.Access(w.number(4))); err != nil {
		return "", err
	}
	s.mrs[w.text(1)] = r
	return fmt.Sprint(r.mr.Addr(), r.mr.LKey(), r.mr.RKey()), nil
}

// mmap allocates memory on pages of its own, at least one.
func (s *session) mmap(size int, fill byte) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, max(size, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	s.maps = append(s.maps, m)
	for i := range m {
		m[i] = fill
	}
	return m, nil
}

func (s *session) dereg(w request) (string, error) {
	r, err := lookup(s.mrs, w.text(1))
	if err != nil {
		return "", err
	}
	if r.mr == nil {
		return "", errors.New("the region is already deregistered")
	}
	if err := r.mr.Close(context.Background()); err != nil {
		return "", err
	}
	r.mr = nil // the memory remains, to detect writes to it
	return "", nil
}

// slice returns a range of the region's memory.
func (r *region) slice(off, n uint64) ([]byte, error) {
	if size := uint64(len(r.mem)); off > size || n > size-off {
		return nil, fmt.Errorf("%d bytes at %d are outside of the region", n, off)
	}
	return r.mem[off:][:n], nil
}

// read NAME OFFSET LENGTH
func (s *session) read(w request) (string, error) {
	r, err := lookup(s.mrs, w.text(1))
	if err != nil {
		return "", err
	}
	b, err := r.slice(w.number(2), w.number(3))
	return hex.EncodeToString(b), err
}

// write NAME OFFSET BYTES
func (s *session) write(w request) (string, error) {
	r, err := lookup(s.mrs, w.text(1))
	if err != nil {
		return "", err
	}
	data, err := w.bytes(3)
	if err != nil {
		return "", err
	}
	b, err := r.slice(w.number(2), uint64(len(data)))
	copy(b, data)
	return "", err
}

// bytes parses argument i as hexadecimal; a dash means no bytes.
func (w request) bytes(i int) ([]byte, error) {
	if w.text(i) == "-" {
		return nil, nil
	}
	return hex.DecodeString(w.text(i))
}

// mw NAME TYPE PD
func (s *session) mw(w request) (string, error) {
	pd, err := s.pd(w.text(3))
	if err != nil {
		return "", err
	}
	m, err := pd.AllocMW(context.Background(), verbs.MWType(w.number(2)))
	if err != nil {
		return "", err
	}
	s.mws[w.text(1)] = m
	return fmt.Sprint(m.RKey()), nil
}

func (s *session) free(w request) (string, error) {
	m, err := lookup(s.mws, w.text(1))
	if err != nil {
		return "", err
	}
	if err := m.Close(context.Background()); err != nil {
		return "", err
	}
	delete(s.mws, w.text(1))
	return "", nil
}

// bind QP ID FLAGS MW MR ADDRESS LENGTH ACCESS RKEY
func (s *session) bind(w request) (string, error) {
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	m, err := lookup(s.mws, w.text(4))
	if err != nil {
		return "", err
	}
	info := verbs.MWBindInfo{Addr: w.number(6), Length: w.number(7), Access: verbs.Access(w.number(8))}
	if r := s.mrs[w.text(5)]; r != nil {
		info.MR = r.mr
	}
	id, flags := w.number(2), verbs.SendFlags(w.number(3))
	if m.Type() == verbs.MWType1 {
		err = q.BindMW(m, verbs.MWBind{WRID: id, SendFlags: flags, MWBindInfo: info})
		return fmt.Sprint(m.RKey()), err
	}
	key := uint32(w.number(9))
	err = q.PostSend(verbs.SendWR{WRID: id, Opcode: verbs.WRBindMW, SendFlags: flags, BindMW: &verbs.BindMW{MW: m, RKey: key, MWBindInfo: info}})
	return fmt.Sprint(key), err
}

func (s *session) xrcd(w request) (string, error) {
	x, err := s.nic.OpenXRCD(context.Background(), nil, os.O_CREATE)
	if err == nil {
		s.xrcds[w.text(1)] = x
	}
	return "", err
}
