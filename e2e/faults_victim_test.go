package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// stallEnv names a smaller stallLimit. The engine then has a processor to itself. On the others the
// test must run with a high priority, which the daemon and the victim inherit. Attackers do not.
const stallEnv = "SOFTROCE_E2E_STALL"

// stallLimit separates a client that waits its turn, also on a busy machine, from one that another
// client holds up.
var stallLimit = func() time.Duration {
	d, err := time.ParseDuration(cmp.Or(os.Getenv(stallEnv), "3s"))
	if err != nil {
		log.Fatalf("%s: %v", stallEnv, err)
	}
	return d
}()

const (
	// victimMessages is the number of messages that the victim must transfer while it is observed.
	victimMessages = 200

	// victimLimit is how long that may take.
	victimLimit = 10 * time.Second

	// victimPause is the time between two of its messages.
	victimPause = time.Millisecond
)

// A victim is a client that transfers data all the time, as root, and checks every byte.
type victim struct {
	x, y  *verbstest.Endpoint
	stop  context.CancelFunc
	ended chan error

	mu       sync.Mutex
	messages int
	started  time.Time     // when the current message was posted
	worst    time.Duration // the longest that a message took since begin
}

func startVictim(t *testing.T, socket string) *victim {
	t.Helper()
	open := func(device string) *verbs.Context {
		c, err := verbs.Open(t.Context(), device, verbs.WithSocket(socket))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	v := &victim{ended: make(chan error, 1)}
	v.x, v.y = verbstest.ConnectedRC(t, open("softroce0"), open("softroce1"))
	var ctx context.Context
	ctx, v.stop = context.WithCancel(context.Background())
	t.Cleanup(v.stop)
	go func() { v.ended <- v.run(ctx) }()
	return v
}

func (v *victim) run(ctx context.Context) error {
	for seq := uint64(1); ctx.Err() == nil; seq++ {
		v.mu.Lock()
		v.started = time.Now()
		v.mu.Unlock()
		if err := transfer(ctx, v.x, v.y, seq); err != nil {
			return fmt.Errorf("message %d of the victim: %w", seq, err)
		}
		v.mu.Lock()
		v.messages++
		v.worst = max(v.worst, time.Since(v.started))
		v.mu.Unlock()
		time.Sleep(victimPause)
	}
	return nil
}

// transfer writes 64 bytes from x to y and compares them.
func transfer(ctx context.Context, x, y *verbstest.Endpoint, seq uint64) error {
	const n = 64
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(x.Buf[i:], seq*0x9e3779b97f4a7c15+uint64(i))
	}
	err := x.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
		SGList: x.SGE(0, n), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	if err != nil {
		return err
	}
	if err := x.CQ.Wait(ctx); err != nil {
		return err
	}
	var wc [1]verbs.WC
	if got, err := x.CQ.Poll(wc[:]); got != 1 || err != nil || wc[0].Err() != nil {
		return fmt.Errorf("%d completions: %w, %w", got, err, wc[0].Err())
	}
	if !bytes.Equal(x.Buf[:n], y.Buf[:n]) {
		return fmt.Errorf("received % x, sent % x", y.Buf[:n], x.Buf[:n])
	}
	return nil
}

// end stops the victim, which must not have failed.
func (v *victim) end(t *testing.T) {
	t.Helper()
	v.stop()
	if err := <-v.ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// state returns how many messages were transferred, and the longest that one took since begin.
func (v *victim) state() (messages int, worst time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.messages, max(v.worst, time.Since(v.started)-victimPause)
}

// begin starts a new observation of the victim.
func (v *victim) begin() {
	v.mu.Lock()
	v.worst = 0
	v.mu.Unlock()
}

// proceed waits until the victim has transferred victimMessages more, and fails the test if a
// message took longer than stallLimit since the last call of begin or proceed.
func (v *victim) proceed(t *testing.T, when string) {
	t.Helper()
	first, _ := v.state()
	for limit := time.Now().Add(victimLimit); ; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-v.ended:
			v.ended <- err
			t.Fatalf("%s: %v", when, err)
		default:
		}
		now, worst := v.state()
		if now < first+victimMessages && time.Now().Before(limit) {
			continue
		}
		t.Logf("%s: %d messages, the longest took %v", when, now-first, worst)
		if now < first+victimMessages || worst > stallLimit {
			t.Errorf("%s: the victim transferred %d messages of %d, the longest took %v", when, now-first, victimMessages, worst)
		}
		v.begin()
		return
	}
}

// limited prepares a daemon with few descriptors, and with a small heap, so that resident memory is
// close to live memory.
func limited(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "prlimit", append([]string{"--nofile=4096:4096", "env", "GOGC=10"}, argv...)...)
}

// What an attack may leave behind: mappings of the heap and of threads, and memory that the heap
// has not returned. The attacks create thousands of mappings.
const (
	mappingAttackSlack     = 128
	residentAttackSlackKiB = 96 << 10
)

// awaitFootprint waits until the daemon holds what it held before.
func awaitFootprint(t *testing.T, pid int, before footprint) {
	t.Helper()
	for limit := time.Now().Add(harness.StartLimit); ; time.Sleep(20 * time.Millisecond) {
		after := footprintOf(t, pid)
		given := after.descriptors <= before.descriptors && after.mappings <= before.mappings+mappingAttackSlack &&
			after.resident <= before.resident+residentAttackSlackKiB
		if !given && time.Now().Before(limit) {
			continue
		}
		t.Logf("the daemon held %+v before, %+v after", before, after)
		if !given {
			t.Error("the daemon holds more than before")
		}
		return
	}
}
