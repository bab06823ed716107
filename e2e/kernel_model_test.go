package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
	"softroce/e2e/verbspeer"
	"softroce/verbs"
)

// TestModelMatchesKernelToKernel runs exchanges between two vprobes in the guest. It shows that the
// memory and the completions that the other tests expect are those of two kernel endpoints.
func TestModelMatchesKernelToKernel(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.BridgeGuest.Acquire(t)
	lab := harness.BridgeLab(t)
	large := func(o *verbspeer.Options) { o.RecvSize = 128 << 10 }
	for _, c := range []exchange{
		{name: "every operation", ops: operations(1024), client: optionsWith(large), server: optionsWith(large)},
		{name: "impaired set", ops: impairedOps, client: optionsWith(), server: optionsWith()},
		{
			name: "a failure", ops: "+write:5000 +badwrite:3000 +write:100@9000 send:4", client: optionsWith(), server: optionsWith(),
			want: []verbs.WCStatus{ok, verbs.WCRemAccessErr, flush, flush},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			g := lab.Guests[0]
			c.client.GIDIndex = rxelab.GIDIndex(false)
			server, err := g.Start(ctx, time.Minute, "vprobe"+c.server.Args())
			if err != nil {
				t.Fatal(err)
			}
			if err := g.WaitListen(ctx, verbspeer.Port); err != nil {
				t.Fatal(err)
			}
			clientText, err := g.Run(ctx, time.Minute, fmt.Sprintf("vprobe%s %v %s", c.client.Args(), g.Addr4, c.ops))
			if err != nil {
				t.Fatal(err)
			}
			serverText, err := server.Wait()
			if err != nil {
				t.Fatal(err)
			}
			compareKernelExchange(t, c, clientText, serverText)
		})
	}
}

// compareKernelExchange compares an exchange with the model. Of both memories only the checksum is
// known.
func compareKernelExchange(t *testing.T, c exchange, clientText, serverText string) {
	t.Helper()
	ops, err := verbspeer.ParseOps(c.ops)
	if err != nil {
		t.Fatal(err)
	}
	client, err := verbspeer.ParseOutput(clientText)
	if err != nil {
		t.Fatal(err)
	}
	o := exchangeResult{log: clientText}
	server := o.parseKernel(t, serverText)
	for _, l := range client.Lines {
		o.statuses = append(o.statuses, l.Status)
	}
	for _, l := range server.Lines {
		if l.Status == verbs.WCSuccess {
			o.received = append(o.received, l.Receive)
		}
	}
	m := verbspeer.NewModel(c.server)
	for i, op := range ops {
		if c.want == nil || c.want[i] == ok {
			m.Apply(op)
		}
	}
	if sum := verbspeer.Sum(m.Client); sum != client.Sum {
		t.Errorf("client's memory has checksum %08x, want %08x", client.Sum, sum)
	}
	o.memory = m.Client
	o.compare(t, c, ops)
}
