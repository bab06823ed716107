package main

import (
	"softroce/internal/pingpong"
)

type pingpongCmd struct {
	daemonFlags
	Host    string `arg:"" optional:"" help:"The server to connect to; without it, run as the server."`
	Port    int    `short:"p" default:"18515" help:"TCP port of the exchange."`
	Device  string `short:"d" name:"ib-dev" placeholder:"NIC" complete:"<nics>" help:"The NIC (default: the first)."`
	IBPort  int    `short:"i" name:"ib-port" default:"1" help:"Port of the NIC: always 1."`
	Size    int    `short:"s" default:"4096" help:"Message size in bytes."`
	MTU     int    `short:"m" default:"1024" complete:"256,512,1024,2048,4096" help:"Path MTU: 256, 512, 1024, 2048 or 4096."`
	RxDepth int    `short:"r" name:"rx-depth" default:"500" help:"Number of receives to post."`
	Iters   int    `short:"n" default:"1000" help:"Number of messages in each direction."`
	SL      int    `short:"l" name:"sl" default:"0" help:"Service level; ignored on RoCE."`
	Events  bool   `short:"e" help:"Sleep until completions arrive, instead of polling."`
	GID     int    `short:"g" name:"gid-idx" default:"${anyGID}" help:"GID index (default: one that can reach the peer's GID)."`
	Check   bool   `short:"c" name:"chk" help:"Verify the data of every message; needed at both ends."`
}

func (p *pingpongCmd) Run(e *env) error {
	o := pingpong.Options{
		Port: p.Port, Size: p.Size, MTU: p.MTU, RxDepth: p.RxDepth, Iters: p.Iters, SL: p.SL,
		GIDIndex: p.GID, Events: p.Events, Check: p.Check,
	}
	if err := o.Validate(); err != nil {
		return &usageError{err}
	}
	if p.IBPort != 1 {
		return usagef("ib-port %d: a softroce NIC has port 1 only", p.IBPort)
	}
	c, err := e.open(p.Device)
	if err != nil {
		return err
	}
	defer c.Close()
	if p.Host == "" {
		_, err = pingpong.Serve(e, c, o, e.out)
	} else {
		_, err = pingpong.Dial(e, p.Host, c, o, e.out)
	}
	return err
}
