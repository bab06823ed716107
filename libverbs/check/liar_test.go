package check

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/verbs/verbstest"
)

// How many programs are lied to, each in its own way, which follows from the seed.
const (
	lies = 40
	seed = 1
)

// TestALyingDaemonDoesNotBringItsProgramDown has somebody between a program and the daemon who changes replies: what
// they say, their length, and the descriptors that come with them.
func TestALyingDaemonDoesNotBringItsProgramDown(t *testing.T) {
	f := verbstest.New(t, verbstest.WithoutLeakCheck())
	daemon := f.Socket()
	file := compile(t, "credulous")
	var running sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range uint64(lies) {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(seed, i))
			socket := between(t, daemon, asItIs, func(m []byte, fds []int) ([]byte, []int) {
				mu.Lock()
				defer mu.Unlock()
				return change(r, m, fds)
			})
			cmd := command(t, socket, file)
			cmd.Env = append(cmd.Env, "ASAN_OPTIONS=detect_leaks=0") // what was taken for lost is
			if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "Sanitizer") {
				t.Errorf("lie %d: %v\n%s", i, err, out)
			}
		})
	}
	running.Wait()
}

// A passer changes a message and its descriptors, or looks at them. Several connections may have one at work.
type passer func(m []byte, fds []int) ([]byte, []int)

func asItIs(m []byte, fds []int) ([]byte, []int) { return m, fds }

// between passes messages on between a socket, which it returns, and the daemon's: requests and replies.
func between(t *testing.T, daemon string, requests, replies passer) string {
	dir, err := os.MkdirTemp("", "liar")
	if err != nil {
		t.Error(err)
		return ""
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixpacket"})
	if err != nil {
		t.Error(err)
		return ""
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.AcceptUnix()
			if err != nil {
				return
			}
			server, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: daemon, Net: "unixpacket"})
			if err != nil {
				client.Close()
				return
			}
			go pass(client, server, requests)
			go pass(server, client, replies)
		}
	}()
	return l.Addr().String()
}

// pass hands on what comes from one side to the other, until it ends.
func pass(from, to *net.UnixConn, change passer) {
	defer to.CloseWrite()
	buf, oob := make([]byte, abi.MaxMessage), make([]byte, unix.CmsgSpace(4*abi.MaxFDs))
	for {
		n, k, _, _, err := from.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		var fds []int
		if messages, err := unix.ParseSocketControlMessage(oob[:k]); err == nil {
			for _, m := range messages {
				rights, _ := unix.ParseUnixRights(&m)
				fds = append(fds, rights...)
			}
		}
		message, sent := change(buf[:n], fds)
		_, _, err = to.WriteMsgUnix(message, unix.UnixRights(sent...), nil)
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			return
		}
	}
}

// TestAttributesThatTheMaskDoesNotSelectStayWithTheProgram listens to what a program asks whose other attributes are all 0xa5.
func TestAttributesThatTheMaskDoesNotSelectStayWithTheProgram(t *testing.T) {
	var changes atomic.Int32
	socket := between(t, verbstest.New(t).Socket(), func(m []byte, fds []int) ([]byte, []int) {
		if binary.LittleEndian.Uint16(m[atOp:]) == abi.OpModifyQP {
			changes.Add(1)
			if bytes.IndexByte(m[abi.HeaderSize+8:], 0xa5) >= 0 { // behind handle and mask
				t.Errorf("the daemon is told: % x", m)
			}
		}
		return m, fds
	}, asItIs)
	if out, err := command(t, socket, compile(t, "selected")).CombinedOutput(); err != nil || changes.Load() != 3 {
		t.Errorf("%v, %d changes\n%s", err, changes.Load(), out)
	}
}

// Offsets in a header, and numbers that somebody may not have thought of.
const (
	atOp     = 2
	atLength = 4
	atError  = 16
)

var odd = []uint32{0, 1, 3, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 24, 65535}

// change changes every third message, but neither whose answer it is nor that it is one: to wait for
// an answer that never comes is all that a program can do.
func change(r *rand.Rand, m []byte, fds []int) ([]byte, []int) {
	body := m[min(abi.HeaderSize, len(m)):]
	if r.IntN(3) != 0 {
		return m, fds
	}
	switch kind := r.IntN(8); {
	case kind < 4 && len(body) >= 4:
		word := body[r.IntN(len(body)/4)*4:]
		binary.LittleEndian.PutUint32(word, odd[r.IntN(len(odd))])
	case kind == 4 && len(body) > 0:
		body[r.IntN(len(body))] = byte(r.Uint32())
	case kind == 5:
		m = m[:abi.HeaderSize+r.IntN(len(body)+1)]
		binary.LittleEndian.PutUint32(m[atLength:], uint32(len(m)))
	case kind == 6 && len(fds) > 0:
		fds = fds[:r.IntN(len(fds))]
	case kind == 6:
		binary.LittleEndian.PutUint32(m[atError:], odd[r.IntN(len(odd))])
	case kind == 7 && len(fds) > 1: // one for another
		i, j := r.IntN(len(fds)), r.IntN(len(fds))
		fds = append([]int(nil), fds...)
		fds[i], fds[j] = fds[j], fds[i]
	}
	return m, fds
}
