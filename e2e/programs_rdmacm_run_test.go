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

// filesCopied counts the files that rcopy has created.
var filesCopied atomic.Int64

// cmLimit bounds the time of an exchange.
const cmLimit = harness.ProgramLimit

// pollHup is POLLHUP, by which poll reports that the peer has disconnected.
const pollHup = 0x10

// rstreamHeading matches the output of rstream before its results.
var rstreamHeading = regexp.MustCompile(`^name .* usec/xfer\n$`)

// runCMExchanges runs each exchange between two endpoints, over IPv4 and IPv6.
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

// versions returns the address families over which the exchange runs.
func (c *cmExchange) versions() []harness.IPVersion {
	var list []harness.IPVersion
	for _, v := range harness.IPVersions {
		if v.IPv6 && !c.ipv4only || !v.IPv6 && !c.ipv6only {
			list = append(list, v)
		}
	}
	return list
}

// commandLine fills in a command line for endpoint e.
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

// A cmResult is the result of an exchange.
type cmResult struct {
	out, serverOut string
	err, serverErr error
}

func (c *cmExchange) run(t *testing.T, server, client harness.Endpoint, ipv6 bool) {
	t.Helper()
	s := c.exchange(t.Context(), t, server, client, ipv6)
	end := s.out
	if client.Provider == harness.Kernel && c.hungUp(s.out, s.err) {
		s.err, end = nil, s.serverOut // the server has received and sent everything
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

// exchange starts the server, starts the client when the server listens, and waits for both.
func (c *cmExchange) exchange(ctx context.Context, t *testing.T, server, client harness.Endpoint, ipv6 bool) cmResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, cmLimit)
	defer cancel()
	serverLine, serverErr := c.commandLine(c.server, &server, &client, ipv6)
	clientLine, clientErr := c.commandLine(c.client, &client, &server, ipv6)
	if err := errors.Join(serverErr, clientErr); err != nil {
		t.Fatal(err)
	}
	// The listener of a server that was killed remains for a moment.
	for {
		if n, err := server.CountListeners(ctx); err != nil || ctx.Err() != nil {
			t.Fatalf("waiting for earlier listeners to close: %v, %v", err, ctx.Err())
		} else if n == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	serverJob := server.Start(ctx, t, serverLine, c.env(t, server)...)
	// Parallel tests copy too, so the name is unique. The file may be in a guest, so its directory
	// is one that exists there.
	copied := fmt.Sprintf("/tmp/softroce-rcopied-%d-%d", os.Getpid(), filesCopied.Add(1))
	defer os.Remove(copied)
	var s cmResult
	s.out, s.err = c.runClient(ctx, t, serverJob, server, client, strings.ReplaceAll(clientLine, "COPY", copied))
	if c.serverStays || s.err != nil && serverJob.Running() && !c.hasCloseError(s.out) && !c.hungUp(s.out, s.err) {
		cancel()
	}
	s.serverOut, s.serverErr = serverJob.Wait()
	return s
}

// env returns environment variables for a program of the exchange. mckey sleeps for three seconds
// after it has joined, and e2e/perftest makes that short.
func (c *cmExchange) env(t *testing.T, e harness.Endpoint) []string {
	t.Helper()
	if !c.repeatClient {
		return nil
	}
	library, err := e.PerftestLibrary()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"LD_PRELOAD=" + library}
}

func (c *cmExchange) hasCloseError(out string) bool {
	return c.closeError != "" && strings.Contains(out, c.closeError)
}

// hungUp reports whether rstream -T a has treated the disconnection of its peer as an error,
// because poll reported it together with the last data. It then ends without a message and with
// status POLLHUP.
func (c *cmExchange) hungUp(out string, err error) bool {
	var exit *rxelab.ExitError
	return c.mayHangUp && errors.As(err, &exit) && exit.Status == pollHup && rstreamHeading.MatchString(out)
}

// runClient starts the client when the server listens, and returns its result.
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
		out, err := client.Start(ctx, t, line, c.env(t, client)...).Wait()
		if ctx.Err() != nil {
			return out, fmt.Errorf("took too long: %w", ctx.Err())
		}
		if !c.repeatClient || err != nil {
			return out, err
		}
		select {
		case <-s.Done:
			return out, nil
		case <-time.After(100 * time.Millisecond): // a datagram is lost if the receiver has not joined yet
		}
	}
}
