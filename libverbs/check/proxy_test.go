package check

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/verbs/verbstest"
)

// The number of programs that get corrupt replies. The seed and the number of a run determine the
// corruption.
const (
	runs = 40
	seed = 1
)

// TestCorruptRepliesDoNotCrashPrograms runs programs behind a proxy that corrupts replies: their
// content, their length, and their descriptors.
func TestCorruptRepliesDoNotCrashPrograms(t *testing.T) {
	f := verbstest.New(t, verbstest.WithoutLeakCheck())
	daemon := f.Socket()
	file := compile(t, "corrupt_replies")
	var running sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range uint64(runs) {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(seed, i))
			socket := startProxy(t, daemon, unchanged, func(m []byte, fds []int) ([]byte, []int) {
				mu.Lock()
				defer mu.Unlock()
				return corrupt(r, m, fds)
			})
			cmd := command(t, socket, file)
			cmd.Env = append(cmd.Env, "ASAN_OPTIONS=detect_leaks=0") // objects are lost with their replies
			if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "Sanitizer") {
				t.Errorf("run %d: %v\n%s", i, err, out)
			}
		})
	}
	running.Wait()
}

// A filter inspects or changes a message and its descriptors. Connections call it concurrently. An
// empty message is not passed on.
type filter func(m []byte, fds []int) ([]byte, []int)

func unchanged(m []byte, fds []int) ([]byte, []int) { return m, fds }

// startProxy forwards messages between a socket, whose path it returns, and the daemon's.
func startProxy(t *testing.T, daemon string, requests, replies filter) string {
	dir, err := os.MkdirTemp("", "proxy")
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
			var forwarding sync.WaitGroup
			forwarding.Go(func() { forward(client, server, requests) })
			forwarding.Go(func() { forward(server, client, replies) })
			go func() {
				forwarding.Wait()
				client.Close()
				server.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// withoutProcess makes registrations by address fail with EPERM: the daemon would take the proxy
// for the client. The library then passes a descriptor of its memory.
func withoutProcess(m []byte) []byte {
	const unknownMemory = math.MaxUint32
	if len(m) < abi.HeaderSize || opOf(m) != abi.OpRegMR {
		return m
	}
	var r abi.RegMRRequest
	if _, err := abi.Decode(m[abi.HeaderSize:], &r); err == nil && r.Memory == abi.MemoryProcess {
		binary.LittleEndian.PutUint32(m[abi.HeaderSize+4:], unknownMemory)
	}
	if binary.LittleEndian.Uint32(m[atError:]) == uint32(unix.EINVAL) {
		binary.LittleEndian.PutUint32(m[atError:], uint32(unix.EPERM))
	}
	return m
}

// forward passes messages on in one direction until the connection ends.
func forward(from, to *net.UnixConn, apply filter) {
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
		message, sent := apply(withoutProcess(buf[:n]), fds)
		if len(message) > 0 {
			_, _, err = to.WriteMsgUnix(message, unix.UnixRights(sent...), nil)
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			return
		}
	}
}

// runBehind runs a program behind a proxy.
func runBehind(t *testing.T, requests, replies filter, name string, args ...string) {
	t.Helper()
	socket := startProxy(t, verbstest.New(t).Socket(), requests, replies)
	if out, err := command(t, socket, compile(t, name), args...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

// refuse returns a filter of requests that makes the daemon refuse the first one with each key: it
// gets an operation that it does not know. A request without a key is not refused.
func refuse(key func(op uint16, body []byte) string) filter {
	var mu sync.Mutex
	refused := map[string]bool{}
	return func(m []byte, fds []int) ([]byte, []int) {
		mu.Lock()
		defer mu.Unlock()
		if k := key(opOf(m), m[abi.HeaderSize:]); k != "" && !refused[k] {
			refused[k] = true
			binary.LittleEndian.PutUint16(m[atOp:], math.MaxUint16)
		}
		return m, fds
	}
}

func opOf(m []byte) uint16 { return binary.LittleEndian.Uint16(m[atOp:]) }

func TestRefusedCallsChangeNothing(t *testing.T) {
	runBehind(t, refuse(func(op uint16, body []byte) string {
		switch op {
		case abi.OpHello, abi.OpListDevices, abi.OpDestroyAH:
			return ""
		case abi.OpRegMR: // of which a call may make two
			return "register"
		}
		return fmt.Sprint(op, body)
	}), unchanged, "refused")
}

func TestIdentifierWhoseQueuesAreRefused(t *testing.T) {
	runBehind(t, refuse(func(op uint16, _ []byte) string {
		switch op {
		case abi.OpCreateChannel, abi.OpCreateCQ, abi.OpCreateQP, abi.OpCMInitQPAttr, abi.OpModifyQP, abi.OpCreateSRQ:
			return fmt.Sprint(op)
		}
		return ""
	}), unchanged, "refused_cm")
}

// Address handles are given up also if the daemon refuses to destroy its own.
func TestAddressHandlesWhoseDestructionIsRefused(t *testing.T) {
	runBehind(t, refuse(func(op uint16, body []byte) string {
		if op == abi.OpDestroyAH {
			return fmt.Sprint(body)
		}
		return ""
	}), unchanged, "refused_ah")
}

// A ring is in memory for whose descriptor the program has no room.
func TestQueuesThatHaveLostTheirRing(t *testing.T) {
	runBehind(t, unchanged, func(m []byte, fds []int) ([]byte, []int) {
		if op := opOf(m); op == abi.OpResizeCQ || op == abi.OpModifySRQ {
			fds = nil
		}
		return m, fds
	}, "resize_lost")
}

func TestQueuePairIsDestroyedWhileAnotherThreadPolls(t *testing.T) {
	destroyed := filepath.Join(t.TempDir(), "destroyed")
	runBehind(t, unchanged, func(m []byte, fds []int) ([]byte, []int) {
		if opOf(m) != abi.OpDestroyQP {
			return m, fds
		}
		if err := os.WriteFile(destroyed, nil, 0o600); err != nil {
			t.Error(err)
		}
		return nil, nil
	}, "destroying", destroyed)
}

// TestUnselectedAttributesAreNotSent inspects the requests of a program whose unselected attributes
// are all 0xa5.
func TestUnselectedAttributesAreNotSent(t *testing.T) {
	var modified atomic.Int32
	socket := startProxy(t, verbstest.New(t).Socket(), func(m []byte, fds []int) ([]byte, []int) {
		if opOf(m) == abi.OpModifyQP {
			modified.Add(1)
			if bytes.IndexByte(m[abi.HeaderSize+8:], 0xa5) >= 0 { // after handle and mask
				t.Errorf("the request contains unselected attributes: % x", m)
			}
		}
		return m, fds
	}, unchanged)
	if out, err := command(t, socket, compile(t, "attr_mask")).CombinedOutput(); err != nil || modified.Load() != 3 {
		t.Errorf("%v, %d requests to modify a queue pair, want 3\n%s", err, modified.Load(), out)
	}
}

// TestCopiesNeedNoRequests counts the requests of programs that create the same address handle, and
// read the GID table, again and again. After a second the library asks the daemon again.
func TestCopiesNeedNoRequests(t *testing.T) {
	var mu sync.Mutex
	requests := map[uint16]int{}
	socket := startProxy(t, verbstest.New(t).Socket(), func(m []byte, fds []int) ([]byte, []int) {
		mu.Lock()
		defer mu.Unlock()
		requests[opOf(m)]++
		return m, fds
	}, unchanged)
	const times = 50
	start := time.Now()
	for _, call := range []string{"ah", "open"} {
		if out, err := command(t, socket, compile(t, "control_calls"), fmt.Sprint(times), call).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", call, err, out)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if n, most := requests[abi.OpCreateAH], 1+int(time.Since(start)/time.Second); n < 1 || n > most {
		t.Errorf("%d requests to create an address handle, want 1 to %d", n, most)
	}
	// Each of the two programs opens the device and reads one GID. One then opens it again and
	// again, and reads the whole table each time.
	if n, want := requests[abi.OpQueryGIDs], 2+times; n != want {
		t.Errorf("%d requests for the GID table, want %d", n, want)
	}
}

// TestDataOfEndpointAreForOneConnection inspects the requests to connect of a program that tries it
// twice.
func TestDataOfEndpointAreForOneConnection(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	runBehind(t, func(m []byte, fds []int) ([]byte, []int) {
		if opOf(m) == abi.OpCMConnect {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, string(m[abi.HeaderSize:]))
		}
		return m, fds
	}, unchanged, "connect_data")
	mu.Lock()
	defer mu.Unlock()
	if len(sent) != 2 || !strings.Contains(sent[0], "given later") || !strings.Contains(sent[1], "later") || strings.Contains(sent[1], "given") {
		t.Errorf("requests %q", sent)
	}
}

// Offsets in the header of a message.
const (
	atOp     = 2
	atLength = 4
	atError  = 16
)

// unusual are values at limits, which a program may not expect.
var unusual = []uint32{0, 1, 3, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 24, 65535}

// corrupt changes one message in three. It leaves the tag and the operation alone: a program would
// wait forever for the reply.
func corrupt(r *rand.Rand, m []byte, fds []int) ([]byte, []int) {
	body := m[min(abi.HeaderSize, len(m)):]
	if r.IntN(3) != 0 {
		return m, fds
	}
	switch kind := r.IntN(8); {
	case kind < 4 && len(body) >= 4:
		word := body[r.IntN(len(body)/4)*4:]
		binary.LittleEndian.PutUint32(word, unusual[r.IntN(len(unusual))])
	case kind == 4 && len(body) > 0:
		body[r.IntN(len(body))] = byte(r.Uint32())
	case kind == 5:
		m = m[:abi.HeaderSize+r.IntN(len(body)+1)]
		binary.LittleEndian.PutUint32(m[atLength:], uint32(len(m)))
	case kind == 6 && len(fds) > 0:
		fds = fds[:r.IntN(len(fds))]
	case kind == 6:
		binary.LittleEndian.PutUint32(m[atError:], unusual[r.IntN(len(unusual))])
	case kind == 7 && len(fds) > 1: // swap two
		i, j := r.IntN(len(fds)), r.IntN(len(fds))
		fds = append([]int(nil), fds...)
		fds[i], fds[j] = fds[j], fds[i]
	}
	return m, fds
}
