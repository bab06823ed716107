package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
)

// copies counts the files that rcopy has made.
var filesCopied atomic.Int64

// cmLimit is how long a conversation may take.
const cmLimit = harness.ProgramLimit

// pollHup is POLLHUP, with which poll tells that the peer has ended.
const pollHup = 0x10

// rstreamHeading is all that rstream prints before it is done.
var rstreamHeading = regexp.MustCompile(`^name .* usec/xfer\n$`)

// converse runs each conversation between two ends, over IPv4 and IPv6.
func runCMExchanges(t *testing.T, server, client harness.Endpoint, list []cmExchange) {
	for _, c := range list {
		for _, v := range c.versions() {
			if c.kernelError != nil && (server.Provider == harness.Kernel || client.Provider == harness.Kernel) {
				continue
			}
			t.Run(c.name+"/"+v.Name, func(t *testing.T) { c.run(t, server, client, v.IPv6) })
		}
	}
}

// versions are the address families over which the conversation is held.
func (c *cmExchange) versions() []harness.IPVersion {
	var list []harness.IPVersion
	for _, v := range harness.IPVersions {
		if v.IPv6 && !c.ipv4only || !v.IPv6 && !c.ipv6only {
			list = append(list, v)
		}
	}
	return list
}

// words makes a command line of e's.
func (c *cmExchange) commandLine(line string, e, peer *harness.Endpoint, ipv6 bool) (string, error) {
	address := peer.Addr[ipv6]
	if ipv6 && c.needsHostName {
		prefix, err := e.WithHostName(address)
		if err != nil {
			return "", err
		}
		line, address = prefix+" "+line, harness.PeerName
	}
	return strings.NewReplacer("SELF", e.Addr[ipv6], "PEER", address).Replace(line), nil
}

// A said is what came of a conversation.
type cmResult struct {
	out, serverOut string
	err, serverErr error
}

func (c *cmExchange) run(t *testing.T, server, client harness.Endpoint, ipv6 bool) {
	t.Helper()
	s := c.exchange(t.Context(), t, server, client, ipv6)
	end := s.out
	if client.Provider == harness.Kernel && c.hungUp(s.out, s.err) {
		s.err, end = nil, s.serverOut // which has had all, and has sent all
	}
	if client.Provider == harness.Kernel && c.hasCloseError(s.out) {
		s.err = nil
	}
	if c.serverStays || server.Provider == harness.Kernel && c.hasCloseError(s.serverOut) {
		s.serverErr = nil
	}
	if s.err != nil || s.serverErr != nil || !strings.Contains(end, c.want) {
		t.Errorf("client: %v\n%s\nserver: %v\n%s", s.err, s.out, s.serverErr, s.serverOut)
	}
}

// talk starts the server and, when it listens, the client, and waits for their ends.
func (c *cmExchange) exchange(ctx context.Context, t *testing.T, server, client harness.Endpoint, ipv6 bool) cmResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, cmLimit)
	defer cancel()
	serverLine, serverErr := c.commandLine(c.server, &server, &client, ipv6)
	clientLine, clientErr := c.commandLine(c.client, &client, &server, ipv6)
	if err := errors.Join(serverErr, clientErr); err != nil {
		t.Fatal(err)
	}
	// A server that was ended leaves its listener to the daemon, or the kernel, for a moment.
	for {
		if n, err := server.CountListeners(ctx); err != nil || ctx.Err() != nil {
			t.Fatalf("before the server starts: %v, %v", err, ctx.Err())
		} else if n == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	serving := server.Start(ctx, t, serverLine)
	// Others copy at the same time. The file may be in a guest, so its folder is one that is there.
	copied := fmt.Sprintf("/tmp/softroce-rcopied-%d-%d", os.Getpid(), filesCopied.Add(1))
	defer os.Remove(copied)
	var s cmResult
	s.out, s.err = c.runClient(ctx, t, serving, server, client, strings.ReplaceAll(clientLine, "COPY", copied))
	if c.serverStays || s.err != nil && serving.Running() && !c.hasCloseError(s.out) && !c.hungUp(s.out, s.err) {
		cancel()
	}
	s.serverOut, s.serverErr = serving.Wait()
	return s
}

func (c *cmExchange) hasCloseError(out string) bool {
	return c.closeError != "" && strings.Contains(out, c.closeError)
}

// hungUp reports whether rstream -T a has taken for an error that its peer has ended, which poll told it together with the
// last of the data: it then ends without a word, and with POLLHUP for its status.
func (c *cmExchange) hungUp(out string, err error) bool {
	var exit *rxelab.ExitError
	return c.mayHangUp && errors.As(err, &exit) && exit.Status == pollHup && rstreamHeading.MatchString(out)
}

// speak starts the client when the server listens, and returns what came of it.
func (c *cmExchange) runClient(ctx context.Context, t *testing.T, s *harness.Job, server, client harness.Endpoint, line string) (string, error) {
	for !c.repeatClient && s.Running() {
		n, err := server.CountListeners(ctx)
		if err != nil {
			return "", fmt.Errorf("the server does not listen: %w", err)
		}
		if n > 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for {
		out, err := client.Start(ctx, t, line).Wait()
		switch {
		case ctx.Err() != nil:
			return out, fmt.Errorf("took too long: %w", ctx.Err())
		case c.repeatClient && err == nil && s.Running():
			time.Sleep(100 * time.Millisecond) // who is no member yet misses a datagram
		default:
			return out, err
		}
	}
}
