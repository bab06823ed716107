package perf

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"softroce/verbs"
)

// Between runs o between two NICs opened by the same program: client measures to server. See
// Measure for what it returns if ctx ends.
func Between(ctx context.Context, client, server *verbs.Context, gid int, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	s := Server{Context: server, GIDIndex: verbs.AnyGID, Log: slog.New(slog.DiscardHandler)}
	served := make(chan error, 1)
	go func() { served <- s.ServeConn(context.WithoutCancel(ctx), theirs) }() // ends with the connection
	r, err := Measure(ctx, ours, client, gid, o)
	if serr := <-served; err == nil {
		err = serr
	}
	return r, err
}

// Local measures between two NICs of the daemon on socket. client and server name the NICs, see
// PickNICs.
func Local(ctx context.Context, socket, client, server string, gid int, o Options) (*Result, error) {
	at := verbs.WithSocket(socket)
	nics, err := verbs.Devices(ctx, at)
	if err != nil {
		return nil, err
	}
	if client, server, err = PickNICs(nics, client, server); err != nil {
		return nil, err
	}
	a, err := verbs.Open(ctx, client, at)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := verbs.Open(ctx, server, at)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return Between(ctx, a, b, gid, o)
}

// PickNICs chooses the two NICs of a run within one daemon: those that are named, else the first
// NIC and the one after it. If the daemon has a single NIC, it is both.
func PickNICs(nics []verbs.DeviceInfo, from, to string) (client, server string, err error) {
	var names []string
	for _, n := range nics {
		names = append(names, n.Name)
	}
	for _, name := range []string{from, to} {
		if name != "" && !slices.Contains(names, name) {
			return "", "", fmt.Errorf("no NIC %q (have: %s)", name, strings.Join(names, ", "))
		}
	}
	if len(names) == 0 {
		return "", "", fmt.Errorf("the daemon has no NIC")
	}
	if from == "" {
		from = names[0]
		if from == to && len(names) > 1 {
			from = names[1]
		}
	}
	if to == "" {
		to = names[(slices.Index(names, from)+1)%len(names)]
	}
	return from, to, nil
}
