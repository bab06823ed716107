package attach

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/nic"
	"softroce/wire"
)

// newStepped returns a server with a NIC on an engine that is stepped.
func newStepped(t testing.TB, c Config) (*Server, *nic.Engine) {
	t.Helper()
	e, err := nic.NewEngine(nic.EngineConfig{Stepped: true})
	if err != nil {
		t.Fatal(err)
	}
	iface := wire.StaticInterface("", [6]byte{2}, 9000, netip.MustParsePrefix("192.0.2.1/24"))
	link := wire.NewFabric().NewLink(e)
	link.Follow(iface)
	if _, err := e.AddDevice(nic.DeviceConfig{Name: "nic0", Link: link, Iface: iface}); err != nil {
		t.Fatal(err)
	}
	c.Engines = []*nic.Engine{e}
	s, err := NewServer(c)
	if err != nil {
		t.Fatal(err)
	}
	return s, e
}

func TestConcurrentSnapshotsAreMadeOnce(t *testing.T) {
	const clients = 64
	var made atomic.Int32
	proceed := make(chan struct{})
	s, e := newStepped(t, Config{Render: func(v Snapshot) any {
		made.Add(1)
		<-proceed
		return v
	}})
	defer e.Close()
	defer s.Close(t.Context())
	var all sync.WaitGroup
	var inodes sync.Map
	for range clients {
		server, sock := socketpair(t)
		if err := s.ServeConn(server); err != nil {
			t.Fatal(err)
		}
		c, err := control.NewClient(t.Context(), sock)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all.Go(func() {
			p, err := c.Call(t.Context(), control.Request{Name: "snapshot", Op: abi.OpSnapshot, Want: 1})
			if err != nil {
				t.Error(err)
				return
			}
			defer p.CloseFDs()
			var st unix.Stat_t
			if err := unix.Fstat(p.FDs[0], &st); err != nil || st.Size == 0 {
				t.Errorf("text of %d bytes, %v", st.Size, err)
			}
			inodes.Store(st.Ino, nil)
			if n, err := unix.Pwrite(p.FDs[0], []byte("x"), 0); err == nil {
				t.Errorf("a client wrote %d bytes of the text that all share", n)
			}
		})
	}
	waiting := func() int {
		s.texts.mu.Lock()
		defer s.texts.mu.Unlock()
		if m := s.texts.making["operator"]; m != nil {
			return m.users
		}
		return 0
	}
	for deadline := time.Now().Add(time.Minute); waiting() < clients; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients wait for the snapshot", waiting())
		}
	}
	close(proceed)
	all.Wait()
	texts := 0
	inodes.Range(func(any, any) bool { texts++; return true })
	if made.Load() != 1 || texts != 1 {
		t.Errorf("%d clients: %d snapshots were made, with %d texts", clients, made.Load(), texts)
	}
}
