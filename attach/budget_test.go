package attach

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

func TestBudgetLeavesSomethingForEveryUser(t *testing.T) {
	b := newBudget()
	b.total = amounts{mappings: 1000, descriptors: 8, memory: 1 << 62}
	one := amounts{mappings: 1}
	for uid, want := range []uint64{500, 250, 125, 62, 31} {
		got := uint64(0)
		var err error
		for ; err == nil; got++ {
			err = b.take(uint32(uid), one)
		}
		if got--; got != want {
			t.Errorf("user %d got %d mappings, want %d", uid, got, want)
		}
		if no, text := explain(err); no != syscall.ENOMEM || !strings.Contains(text, "mappings") || !strings.Contains(text, "1000") {
			t.Errorf("user %d: %v", uid, err)
		}
	}
	if no, text := explain(b.take(9, amounts{mappings: 1, descriptors: 5})); no != syscall.EMFILE || !strings.Contains(text, "5 more") {
		t.Errorf("descriptors: %v, %q", no, text)
	}
	if err := b.take(9, amounts{memory: 1<<64 - 1}); err == nil {
		t.Error("an amount that overflows was taken")
	}
	for uid, u := range b.users {
		b.release(uid, *u)
	}
	if b.used != (amounts{}) || len(b.info()) != 0 {
		t.Errorf("left: %v, %v", b.used, b.info())
	}
}

// The socket of a client that has left may take any time to close. The threads that do so are
// bounded for each user.
func TestClosingSocketsAreBounded(t *testing.T) {
	b := newBudget()
	b.total[waiting] = 3
	one := amounts{waiting: 1}
	b.await(1, one)
	second := make(chan struct{})
	go func() {
		b.await(1, one)
		close(second)
	}()
	b.await(2, one) // another user does not wait
	b.release(2, one)
	select {
	case <-second:
		t.Error("a user has more than remains free")
	default:
	}
	b.release(1, one)
	<-second
}

// A session is a connection whose requests the test passes to it.
type session struct {
	*conn
	t *testing.T
}

func newSession(t *testing.T, s *Server, uid uint32) *session {
	t.Helper()
	server, client := socketpair(t)
	go func() { // reads the replies
		for buf := make([]byte, abi.MaxMessage); ; {
			p, err := control.Read(client, buf)
			p.CloseFDs()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { client.Close() })
	p, err := peerOf(server)
	if err != nil {
		t.Fatal(err)
	}
	p.UID = uid
	c := newConn(s, server, p)
	if err := s.addConn(c); err != nil {
		t.Fatal(err)
	}
	return &session{conn: c, t: t}
}

func (c *session) play(requests []byte) {
	for len(requests) >= requestHeaderLen {
		var m control.Packet
		m, requests = nextRequest(requests)
		c.handle(&m)
		c.slowRequests.Wait()
	}
}

// leave ends the connection. Its goroutine would do the same.
func (c *session) leave() {
	c.cleanup()
	c.server.removeConn(c.conn)
	c.server.running.Done()
}

// try carries out a request and returns its error.
func (c *session) try(op uint16, body ...any) error {
	c.t.Helper()
	p := control.Packet{Header: abi.Header{Version: abi.Version, Op: op}, Body: abi.Append(nil, body...)}
	o, owner, err := c.lookUp(&p)
	if err == nil {
		_, err = owner.locked(o, func() (reply, error) {
			a, err := o.run(owner, &p)
			for _, fd := range a.closeAfter {
				unix.Close(fd)
			}
			return a, err
		})
	}
	return err
}

func TestClientReleasesAllThatItUses(t *testing.T) {
	s, e := newStepped(t, Config{})
	gid := netip.MustParseAddr("192.0.2.1").As16()
	for name, requests := range map[string][]byte{"objects": validSession(gid), "device memory": deviceSession()} {
		for _, leavesEarly := range []bool{false, true} {
			c := newSession(t, s, 7)
			c.play(appendRequest(appendRequest(nil, abi.OpHello, 0, abi.HelloRequest{}), abi.OpOpenDevice, 0, abi.OpenDeviceRequest{}))
			opened := c.account.held
			if opened[mappings] == 0 || opened[descriptors] == 0 || opened[memory] == 0 {
				t.Errorf("%s: an open device uses %v", name, opened)
			}
			if leavesEarly {
				requests = requests[:len(requests)*2/3]
			}
			c.play(requests)
			if held := c.account.held; (held == opened) == leavesEarly {
				t.Errorf("%s: the objects use %v, with none left %v", name, held, opened)
			}
			c.play(appendRequest(nil, abi.OpRegMR, 2, abi.RegMRRequest{})) // one descriptor too many
			c.leave()
		}
	}
	now := int64(1)
	for deadline := time.Now().Add(time.Minute); len(s.budget.info()) > 0; time.Sleep(time.Millisecond) {
		now++
		e.Step(now) // memory epochs end
		if time.Now().After(deadline) {
			t.Fatalf("no client is left, but %+v", s.budget.info())
		}
	}
	if s.budget.used != (amounts{}) {
		t.Errorf("left: %v", s.budget.used)
	}
}

// Each of the clients stays below its limits.
func TestClientsOfOneUserCannotExhaustTheDaemon(t *testing.T) {
	for _, c := range []struct {
		name  string
		total amounts
		op    uint16
		body  any
		want  syscall.Errno
	}{
		{"mappings", amounts{mappings: 12}, abi.OpCreateCQ, abi.CreateCQRequest{Entries: 1 << 16}, syscall.ENOMEM},
		{"descriptors", amounts{descriptors: 100}, abi.OpCreateCQ, abi.CreateCQRequest{Entries: 1, Flags: abi.CQOwnChannel}, syscall.EMFILE},
		{"memory", amounts{memory: 16 << 20}, abi.OpCreateCQ, abi.CreateCQRequest{Entries: 8192}, syscall.ENOMEM},
		{"memory", amounts{memory: 4 << 20}, abi.OpAllocPD, nil, syscall.ENOMEM},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, e := newStepped(t, Config{})
			defer e.Close()
			for r := range resources {
				if c.total[r] != 0 {
					s.budget.total[r] = c.total[r]
				}
			}
			body := []any{}
			if c.body != nil {
				body = append(body, c.body)
			}
			open := appendRequest(appendRequest(nil, abi.OpHello, 0, abi.HelloRequest{}), abi.OpOpenDevice, 0, abi.OpenDeviceRequest{})
			greedy := []*session{newSession(t, s, 1), newSession(t, s, 1)}
			for _, g := range greedy {
				g.play(open)
			}
			for _, g := range greedy {
				var err error
				for err == nil {
					err = g.try(c.op, body...)
				}
				if no, text := explain(err); no != c.want || !strings.Contains(text, "user 1 has") || !strings.Contains(text, c.name) {
					t.Errorf("the user's resources end with %v: %q", no, text)
				}
			}
			other := newSession(t, s, 2)
			other.play(open)
			if err := other.try(c.op, body...); err != nil {
				t.Errorf("another user: %v", err)
			}
			for _, g := range append(greedy, other) {
				g.leave()
			}
			if s.budget.used != (amounts{}) {
				t.Errorf("left: %v", s.budget.used)
			}
		})
	}
}
