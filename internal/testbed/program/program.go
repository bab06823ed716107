// Package program is the verbs program of a live scenario for a softroce NIC. It does with package
// verbs what the program in c/ does with libibverbs, and supports FLUSH as well.
package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"softroce/verbs"
)

// Serve replies to each line of in with a line to out, in the format of README.md, until in or ctx
// ends. It then destroys the objects that it created, and leaves nic open.
func Serve(ctx context.Context, nic *verbs.Context, in io.Reader, out io.Writer) error {
	ch, err := nic.CreateCompChannel(ctx)
	if err != nil {
		return err
	}
	s := &session{ctx: ctx, nic: nic, channel: ch}
	s.clear()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() && ctx.Err() == nil {
		reply, err := s.execute(strings.Fields(lines.Text()))
		if err != nil {
			reply = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		} else {
			reply = strings.TrimSuffix("ok "+reply, " ")
		}
		if _, err := fmt.Fprintln(out, reply); err != nil {
			return errors.Join(err, s.reset(), ch.Close(ctx))
		}
	}
	return errors.Join(lines.Err(), ctx.Err(), s.reset(), ch.Close(ctx))
}

// maxLine bounds a line, in bytes. Memory contents are in hexadecimal.
const maxLine = 64 << 20

// A session holds the objects that were created, by the names that the script assigned.
type session struct {
	ctx     context.Context
	nic     *verbs.Context
	channel *verbs.CompChannel
	gid     verbs.GIDEntry // the GID for the peer

	pds          map[string]*verbs.PD
	mrs          map[string]*region
	mws          map[string]*verbs.MW
	xrcds        map[string]*verbs.XRCD
	cqs          map[string]*verbs.CQ
	srqs         map[string]*verbs.SRQ
	qps          map[string]*queuePair
	anonymousCQs int // number of unnamed completion queues
	maps         [][]byte
}

type region struct {
	mr  *verbs.MR // nil after deregistration
	mem []byte
}

type queuePair struct {
	*verbs.QP
	typ verbs.QPType
	av  verbs.AHAttr
	ah  *verbs.AH // for UD, created from av on first use
}

func (s *session) clear() {
	s.pds, s.mrs, s.mws, s.xrcds = map[string]*verbs.PD{}, map[string]*region{}, map[string]*verbs.MW{}, map[string]*verbs.XRCD{}
	s.cqs, s.srqs, s.qps = map[string]*verbs.CQ{}, map[string]*verbs.SRQ{}, map[string]*queuePair{}
	s.anonymousCQs, s.maps = 0, nil
}

// A request holds the words of a line, including the command.
type request []string

func (w request) text(i int) string {
	if i < len(w) {
		return w[i]
	}
	return "-"
}

// number returns argument i, or 0 if it is not a number, like the C program.
func (w request) number(i int) uint64 {
	n, _ := strconv.ParseUint(w.text(i), 0, 64)
	return n
}

var commands = map[string]func(*session, request) (string, error){
	"hello": (*session).hello, "gid": (*session).findGID, "now": (*session).now, "reset": func(s *session, _ request) (string, error) { return "", s.reset() },
	"mr": (*session).mr, "dereg": (*session).dereg, "read": (*session).read, "write": (*session).write,
	"mw": (*session).mw, "free": (*session).free, "bind": (*session).bind, "xrcd": (*session).xrcd,
	"cq": (*session).cq, "arm": (*session).arm, "notice": (*session).notice, "poll": (*session).poll, "event": (*session).event,
	"srq": (*session).srq, "resize": (*session).resize, "limit": (*session).limit,
	"qp": (*session).qp, "modify": (*session).modify, "query": (*session).query, "state": (*session).state, "destroy": (*session).destroy,
	"attach": (*session).attach, "detach": (*session).detach, "send": (*session).send, "recv": (*session).recv,
}

func (s *session) execute(w request) (string, error) {
	if len(w) == 0 {
		return "", errors.New("empty line")
	}
	f, ok := commands[w[0]]
	if !ok {
		return "", fmt.Errorf("unknown command %s", w[0])
	}
	return f(s, w)
}

// lookup returns the object of a name.
func lookup[T any](m map[string]T, name string) (T, error) {
	o, ok := m[name]
	if !ok {
		return o, fmt.Errorf("no object %s", name)
	}
	return o, nil
}

// hello PEER selects the GID for a peer.
func (s *session) hello(w request) (string, error) {
	peer, err := netip.ParseAddr(w.text(1))
	if err != nil {
		return "", err
	}
	gids, err := s.nic.GIDs(context.Background())
	if err != nil {
		return "", err
	}
	for _, g := range gids {
		a := g.GID.Addr()
		if a.Is4() == peer.Is4() && !a.IsLinkLocalUnicast() && g.VLAN == 0 && !g.RoCEv1 {
			s.gid = g
			return fmt.Sprint(a, " ", g.Index), nil
		}
	}
	return "", fmt.Errorf("the device has no address of the address family of %v", peer)
}

// gid VERSION finds the GID of a version of RoCE with the address that hello returned.
func (s *session) findGID(w request) (string, error) {
	version := w.number(1)
	gids, err := s.nic.GIDs(context.Background())
	if err != nil {
		return "", err
	}
	for _, g := range gids {
		if g.GID == s.gid.GID && g.VLAN == s.gid.VLAN && g.RoCEv1 == (version == 1) && (version == 1 || version == 2) {
			return fmt.Sprint(g.Index), nil
		}
	}
	return "", fmt.Errorf("the device has no GID of RoCE v%d for %v", version, s.gid.GID.Addr())
}

// now queries the NIC twice: packets that arrived before the first query are processed before the
// second.
func (s *session) now(request) (string, error) {
	for range 2 {
		if _, err := s.nic.QueryPort(context.Background()); err != nil {
			return "", err
		}
	}
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return fmt.Sprint(t.Nano()), err
}

// closeAll closes the objects in m.
func closeAll[T interface{ Close(context.Context) error }](m map[string]T) (err error) {
	for _, o := range m {
		err = errors.Join(err, o.Close(context.Background()))
	}
	return err
}

// Close also destroys the address handle.
func (q *queuePair) Close(ctx context.Context) error {
	err := q.QP.Close(ctx)
	if q.ah != nil {
		err = errors.Join(err, q.ah.Close(ctx))
	}
	return err
}

// Close deregisters the region unless that has been done.
func (r *region) Close(ctx context.Context) error {
	if r.mr == nil {
		return nil
	}
	mr := r.mr
	r.mr = nil
	return mr.Close(ctx)
}

// reset destroys all objects.
func (s *session) reset() error {
	err := errors.Join(closeAll(s.qps), closeAll(s.srqs), closeAll(s.cqs), closeAll(s.mws), closeAll(s.mrs), closeAll(s.xrcds), closeAll(s.pds))
	for _, m := range s.maps {
		err = errors.Join(err, unix.Munmap(m))
	}
	s.clear()
	for { // discard the remaining events of the objects
		ctx, cancel := s.shortContext()
		_, none := s.nic.AsyncEvent(ctx)
		cancel()
		if none != nil {
			return err
		}
	}
}
