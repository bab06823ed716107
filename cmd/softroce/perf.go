package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/perf"
)

type perfCmd struct {
	daemonFlags
	Op       string        `arg:"" optional:"" complete:"send,write,read,atomic" help:"send, write, read or atomic."`
	Type     string        `default:"rc" complete:"rc,uc,ud" help:"Transport service: rc, uc (send and write only) or ud (send only)."`
	Size     string        `placeholder:"SIZE" complete:"64,4KiB,64KiB,1MiB" help:"Message size in bytes, such as 65536 or 64KiB (default: 64KiB; ud: 1KiB)."`
	Duration time.Duration `default:"2s" help:"How long to measure bandwidth."`
	Latency  time.Duration `default:"1s" help:"How long to measure latency first; 0 to skip it."`
	QPs      int           `name:"qps" default:"1" help:"Number of queue pairs."`
	Depth    int           `default:"64" help:"Operations outstanding on each queue pair."`
	MTU      int           `name:"mtu" default:"0" complete:"256,512,1024,2048,4096" help:"Path MTU: 256, 512, 1024, 2048 or 4096 (default: the largest that fits)."`
	JSON     bool          `name:"json" help:"Print the result as JSON."`

	Server bool   `xor:"role" help:"Run as the server for clients on other machines."`
	Once   bool   `help:"With --server: exit after the first client."`
	Client string `xor:"role" placeholder:"HOST" help:"Measure to the server on HOST."`
	Port   int    `default:"${perfPort}" help:"TCP port of the exchange, with --server and --client."`
	Device string `placeholder:"NIC" complete:"<nics>" help:"The NIC (default: the first)."`
	Peer   string `placeholder:"NIC" complete:"<nics>" help:"The destination NIC when both NICs belong to one daemon (default: the next one)."`
	GID    int    `name:"gid" default:"${anyGID}" help:"GID index (default: one that can reach the peer's GID)."`
}

func (p *perfCmd) Run(e *env) error {
	if p.Port < 0 || p.Port > 65535 {
		return usagef("port %d: want 0 to 65535", p.Port)
	}
	switch {
	case p.Server && p.Op != "":
		return usagef("perf --server takes no operation: the client names it")
	case p.Once && !p.Server:
		return usagef("--once requires --server")
	case p.Peer != "" && (p.Server || p.Client != ""):
		return usagef("--peer is for measuring between two NICs of one daemon, without --server and --client")
	case p.Server:
		return p.serve(e)
	case p.Op == "":
		return usagef("perf needs an operation: want send, write, read or atomic")
	}
	kind := perf.Type(strings.ToLower(p.Type))
	switch {
	case p.Size == "" && kind == perf.UD:
		p.Size = "1KiB"
	case p.Size == "":
		p.Size = "64KiB"
	}
	size, err := daemon.ParseBytes(p.Size)
	if err != nil {
		return &usageError{err}
	}
	o := perf.Options{
		Op: perf.Op(p.Op), Type: kind, Size: int(min(size, 1<<40)), Duration: p.Duration, Latency: p.Latency,
		QPs: p.QPs, Depth: p.Depth, MTU: p.MTU, Progress: new(perf.Progress),
	}
	if err := o.Validate(); err != nil {
		return &usageError{err}
	}
	stop := e.showProgress(o.Progress)
	r, err := p.measure(e, o)
	stop()
	if r == nil {
		return err
	}
	if p.JSON {
		return errors.Join(err, e.json(r))
	}
	return errors.Join(err, r.WriteText(e.out))
}

func (p *perfCmd) serve(e *env) error {
	c, err := e.open(p.Device)
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := net.Listen("tcp", ":"+strconv.Itoa(p.Port))
	if err != nil {
		return err
	}
	s := perf.Server{Context: c, GIDIndex: p.GID, Log: slog.New(slog.NewTextHandler(e.err, nil))}
	fmt.Fprintf(e.err, "softroce: perf server on %s, NIC %s\n", l.Addr(), c.Device())
	if err := s.Serve(e, l, p.Once); e.Err() == nil {
		return err
	}
	return nil
}

func (p *perfCmd) measure(e *env, o perf.Options) (*perf.Result, error) {
	if p.Client == "" {
		return p.measureLocally(e, o)
	}
	c, err := e.open(p.Device)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return perf.Dial(e, p.Client, p.Port, c, p.GID, o)
}

// measureLocally measures between two NICs of one daemon. If there is none, and none is named, it
// is a new one.
func (p *perfCmd) measureLocally(e *env, o perf.Options) (*perf.Result, error) {
	found, err := e.find()
	if err == nil {
		defer found.Close()
		return perf.Local(e, found.Socket, p.Device, p.Peer, p.GID, o)
	}
	if e.socket != "" || !errors.Is(err, control.ErrNoDaemon) {
		return nil, err
	}
	d, cleanup, startErr := daemon.StartPrivate(release())
	if startErr != nil {
		return nil, startErr
	}
	defer cleanup()
	fmt.Fprintf(e.err, "softroce: %v; measuring with a daemon of its own\n", err)
	return perf.Local(e, d.Socket(), p.Device, p.Peer, p.GID, o)
}
