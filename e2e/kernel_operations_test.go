package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
	"softroce/e2e/verbspeer"
	"softroce/verbs"
)

// An exchange is a list of operations between a client and a server, one of which is vprobe in the
// guest.
type exchange struct {
	name           string
	ops            string
	client, server verbspeer.Options
	want           []verbs.WCStatus // status of each operation; nil: all succeed
	responderDepth int              // if not 0, an operation after that many may be refused as an invalid request
	limit          time.Duration    // 0 is a minute
}

// runExchange runs an exchange with softroce as the client or as the server. It compares with the
// model how each operation completed, the receive completions, and every byte of both memories.
func runExchange(t *testing.T, s *harness.Testbed, v harness.IPVersion, c exchange, softroceServes bool) {
	t.Helper()
	limit := c.limit
	if limit == 0 {
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errors.New("exchange took too long"))
	defer cancel()
	ops, err := verbspeer.ParseOps(c.ops)
	if err != nil {
		t.Fatal(err)
	}
	c.client.GIDIndex, c.server.GIDIndex = s.GIDIndex(t, v), rxelab.GIDIndex(v.IPv6)
	if softroceServes {
		c.client.GIDIndex, c.server.GIDIndex = c.server.GIDIndex, c.client.GIDIndex
	}
	var seen exchangeResult
	if softroceServes {
		seen = exchangeAsServer(ctx, t, s, c)
	} else {
		if d := verbspeer.Defaults(); c.client.Timeout == d.Timeout && c.client.Retry == d.Retry {
			c.client.Timeout = clientTimeout
		}
		seen = exchangeAsClient(ctx, t, s, c, ops)
	}
	seen.compare(t, c, ops)
}

// clientTimeout is the code of a local ACK timeout of 268 ms. With all retries that is two seconds,
// for which a guest may stall on a busy machine. vprobe's default is a quarter of that, but the
// kernel's retry count never runs out.
const clientTimeout = 16

// An exchangeResult is the result of an exchange, from either end's point of view.
type exchangeResult struct {
	statuses  []verbs.WCStatus    // statuses of the client's operations
	received  []verbspeer.Receive // receive completions of the server
	memory    []byte              // softroce's buffer
	kernelSum uint32              // checksum of the guest's buffer
	serves    bool                // softroce is the server
	log       string
}

// exchangeAsClient runs softroce's end as the client.
func exchangeAsClient(ctx context.Context, t *testing.T, s *harness.Testbed, c exchange, ops []verbspeer.Op) (o exchangeResult) {
	t.Helper()
	guest, err := s.Guest.Start(ctx, time.Minute, "vprobe"+c.server.Args())
	if err != nil {
		t.Fatal(err)
	}
	end := openEndpoint(t, s, c.client, false)
	conn, err := s.Guest.Dial(ctx, verbspeer.Port)
	if err != nil {
		t.Fatalf("%v; vprobe: %s", err, guest.Output())
	}
	if err := end.Connect(ctx, conn); err != nil {
		t.Fatalf("%v; vprobe: %s", err, guest.Output())
	}
	wcs, err := end.Run(ctx, ops)
	if err != nil {
		t.Errorf("softroce: %v", err)
	}
	for _, wc := range wcs {
		o.statuses = append(o.statuses, wc.Status)
	}
	conn.Close()
	text, err := guest.Wait()
	if err != nil {
		t.Fatalf("vprobe: %v\n%s", err, text)
	}
	out := o.parseKernel(t, text)
	for _, l := range out.Lines {
		if l.What == "server" && l.Status == verbs.WCSuccess {
			o.received = append(o.received, l.Receive)
		}
	}
	o.memory = end.Buffer
	return o
}

// exchangeAsServer runs softroce's end as the server. It has a port of its own: a child of this
// process that has not executed its program yet keeps a listener open that was closed.
func exchangeAsServer(ctx context.Context, t *testing.T, s *harness.Testbed, c exchange) (o exchangeResult) {
	t.Helper()
	o.serves = true
	port := harness.FreePort()
	listener, err := rxelab.Listen(s.Lab.EmuNamespace(), netip.AddrPortFrom(s.Lab.Host(), uint16(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	end := openEndpoint(t, s, c.server, true)
	guest, err := s.Guest.Start(ctx, time.Minute, fmt.Sprintf("vprobe%s -p %d %v %s", c.client.Args(), port, s.Lab.Host(), c.ops))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-guest.Done()
		listener.Close() // a vprobe that failed early does not connect
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatalf("%v; vprobe: %s", err, guest.Output())
	}
	if err := end.Connect(ctx, conn); err != nil {
		t.Fatalf("%v; vprobe: %s", err, guest.Output())
	}
	wcs, err := end.Serve(ctx)
	if err != nil {
		t.Errorf("softroce: %v", err)
	}
	for _, wc := range wcs {
		if wc.Status == verbs.WCSuccess {
			r := verbspeer.Receive{Opcode: wc.Opcode, Length: wc.ByteLen, WithImm: wc.WCFlags&verbs.WCWithImm != 0}
			if r.WithImm {
				r.Imm = wc.Imm
			}
			o.received = append(o.received, r)
		}
	}
	text, err := guest.Wait()
	if err != nil {
		t.Fatalf("vprobe: %v\n%s", err, text)
	}
	out := o.parseKernel(t, text)
	for _, l := range out.Lines {
		o.statuses = append(o.statuses, l.Status)
	}
	o.memory = end.Buffer
	return o
}

func openEndpoint(t *testing.T, s *harness.Testbed, o verbspeer.Options, server bool) *verbspeer.Endpoint {
	t.Helper()
	end, err := verbspeer.Open(s.NIC, o, server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end.Close() })
	return end
}

func (o *exchangeResult) parseKernel(t *testing.T, text string) verbspeer.Output {
	t.Helper()
	out, err := verbspeer.ParseOutput(text)
	if err != nil {
		t.Fatal(err)
	}
	o.log, o.kernelSum = text, out.Sum
	return out
}

func (o exchangeResult) compare(t *testing.T, c exchange, ops []verbspeer.Op) {
	t.Helper()
	ops = slices.DeleteFunc(slices.Clone(ops), func(op verbspeer.Op) bool { return op.Name == "sleep" })
	want := c.wantStatuses(len(ops), o.statuses)
	if !slices.Equal(o.statuses, want) {
		t.Errorf("operations completed with\n  %v\nwant\n  %v\nvprobe: %s", o.statuses, want, o.log)
		return
	}
	m := verbspeer.NewModel(c.server)
	for i, op := range ops {
		switch {
		case want[i] == verbs.WCSuccess:
			m.Apply(op)
		case strings.HasPrefix(op.Name, "send") && want[i] != verbs.WCWRFlushErr && len(m.Undefined) == 0:
			m.Overrun()
		}
	}
	if !slices.Equal(o.received, m.Received) {
		t.Errorf("server received\n  %v\nwant\n  %v", o.received, m.Received)
	}
	softroceWant, kernelWant := m.Client, m.Server
	if o.serves {
		softroceWant, kernelWant = m.Server, m.Client
		for _, r := range m.Undefined {
			copy(softroceWant[r[0]:r[1]], o.memory[r[0]:r[1]])
		}
	}
	if at, ok := firstDifference(o.memory, softroceWant); !ok {
		t.Errorf("softroce's memory differs at byte %d: %#02x, want %#02x", at, o.memory[at], softroceWant[at])
	}
	if sum := verbspeer.Sum(kernelWant); sum != o.kernelSum && (o.serves || len(m.Undefined) == 0) {
		t.Errorf("the kernel's memory has checksum %08x, want %08x", o.kernelSum, sum)
		if i := lostResult(c.server, ops, o.kernelSum); o.serves && i >= 0 {
			t.Errorf("it is what it would be if operation %d, %s, had not written its result", i, ops[i].Text)
		}
	}
}

// applyWithout applies operations, and returns the client's memory without the result of one.
func applyWithout(server verbspeer.Options, ops []verbspeer.Op, lost int) []byte {
	m := verbspeer.NewModel(server)
	for i, op := range ops {
		if i != lost {
			m.Apply(op)
			continue
		}
		before := slices.Clone(m.Client)
		m.Apply(op)
		m.Client = before
	}
	return m.Client
}

// lostResult returns the index of the READ or atomic operation without whose result the client's
// memory has the checksum sum, or -1. All operations were successful.
func lostResult(server verbspeer.Options, ops []verbspeer.Op, sum uint32) int {
	for lost := range ops {
		if verbspeer.Sum(applyWithout(server, ops, lost)) == sum {
			return lost
		}
	}
	return -1
}

// Every result that a READ or an atomic operation writes shows in the client's memory at the end.
func TestLostResultIsFound(t *testing.T) {
	ops, err := verbspeer.ParseOps(onePacketReads)
	if err != nil {
		t.Fatal(err)
	}
	for lost, op := range ops {
		if op.Name != "read" && op.Name != "faa" && op.Name != "cas" {
			continue
		}
		sum := verbspeer.Sum(applyWithout(verbspeer.Defaults(), ops, lost))
		if got := lostResult(verbspeer.Defaults(), ops, sum); got != lost {
			t.Errorf("without the result of operation %d, %s: found %d", lost, op.Text, got)
		}
	}
}

// wantStatuses returns how n operations must complete. If they exceed the depth of the responder,
// that depends on timing, so it is derived from the observed statuses: either all succeed, or one
// is refused and the later ones are flushed.
func (c exchange) wantStatuses(n int, seen []verbs.WCStatus) []verbs.WCStatus {
	if c.want != nil {
		return c.want
	}
	want := make([]verbs.WCStatus, n)
	if refused := slices.Index(seen, verbs.WCRemInvReqErr); c.responderDepth > 0 && refused >= c.responderDepth {
		want[refused] = verbs.WCRemInvReqErr
		for i := refused + 1; i < n; i++ {
			want[i] = verbs.WCWRFlushErr
		}
	}
	return want
}

func firstDifference(a, b []byte) (at int, same bool) {
	if bytes.Equal(a, b) {
		return 0, true
	}
	for i := range a {
		if a[i] != b[i] {
			return i, false
		}
	}
	return len(a), false
}

// optionsWith returns the default options with changes.
func optionsWith(change ...func(*verbspeer.Options)) verbspeer.Options {
	o := verbspeer.Defaults()
	for _, f := range change {
		f(&o)
	}
	return o
}

// runInBothRoles runs exchanges with softroce as the client and as the server.
func runInBothRoles(t *testing.T, s *harness.Testbed, v harness.IPVersion, list []exchange) {
	for _, c := range list {
		t.Run(c.name+"/kernel serves", func(t *testing.T) { runExchange(t, s, v, c, false) })
		t.Run(c.name+"/kernel connects", func(t *testing.T) { runExchange(t, s, v, c, true) })
	}
}

// operations lists every operation at sizes that matter for a path MTU: empty, with pads of 0 to 3
// bytes, exactly one packet, and many packets.
func operations(mtu int) string {
	var b strings.Builder
	// A compare-and-swap that matches, and the same again, which then does not.
	initial := binary.LittleEndian.Uint64(verbspeer.Pattern(64, true)[40:])
	fmt.Fprintf(&b, "faa:5 faa:0xffffffffffffffff@8 faa:1@16 cas:%d,7@40 cas:%d,9@40", initial, initial)
	for _, n := range []int{0, 1, 2, 3, 4, 5, 100, mtu - 1, mtu, mtu + 1, 2*mtu + 3, 5 * mtu, 33333, 65536, 100000} {
		for _, name := range []string{"send", "sendse", "sendimm"} {
			fmt.Fprintf(&b, " %s:%d", name, n)
		}
		// WRITEs and READs at different offsets, unaligned ones included.
		fmt.Fprintf(&b, " write:%d@%d writeimm:%d@%d read:%d@%d", n, 300000+n, n, 500001+n, n, 700003+n)
	}
	return b.String()
}

func TestEveryOperationWithKernel(t *testing.T) {
	process := func(o *verbspeer.Options) { o.Shared = false }
	runs := []struct {
		v   harness.IPVersion
		mtu int
		set func(*verbspeer.Options)
	}{
		{harness.IPVersions[0], 4096, func(*verbspeer.Options) {}},
		{harness.IPVersions[1], 1024, process},
		// The following run on the first link only.
		{harness.IPVersions[0], 256, process},
		{harness.IPVersions[0], 1024, func(*verbspeer.Options) {}},
		{harness.IPVersions[1], 4096, process},
	}
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		list := runs
		if !s.OnFirstLink() {
			list = list[:2]
		}
		for _, r := range list {
			set := func(o *verbspeer.Options) { o.MTU, o.RecvSize = r.mtu, 128<<10 }
			o := optionsWith(set, r.set)
			memory := "shared"
			if !o.Shared {
				memory = "of the process"
			}
			runInBothRoles(t, s, r.v, []exchange{
				{name: fmt.Sprintf("%s/mtu=%d, memory %s", r.v.Name, r.mtu, memory), ops: operations(r.mtu), client: o, server: o},
			})
		}
	}, harness.XDP)
}
