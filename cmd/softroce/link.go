package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

type linkCmd struct {
	daemonFlags
	Device string         `arg:"" name:"nic" complete:"<nics>" help:"The NIC."`
	State  string         `arg:"" enum:"up,down,flap" help:"What the link becomes: up, down, or down for a time (flap)."`
	Port   uint32         `default:"1" help:"The port of a NIC that has two."`
	For    *time.Duration `placeholder:"DURATION" help:"How long the link is down with flap (default: 1s)."`
}

func (l *linkCmd) Run(e *env) error {
	down := time.Second
	switch {
	case l.For == nil:
	case l.State != "flap":
		return &usageError{errors.New("--for is for flap")}
	case *l.For <= 0:
		return &usageError{fmt.Errorf("--for %v: want a time above 0, such as 500ms", *l.For)}
	default:
		down = *l.For
	}
	if l.Port == 0 {
		return &usageError{errors.New("--port 0: ports are counted from 1")}
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetPort(e, l.Device, l.Port, l.State == "up"); err != nil || l.State != "flap" {
		return err
	}
	select {
	case <-time.After(down):
	case <-e.Done(): // Ctrl-C shortens the time
	}
	return errors.Join(e.Err(), c.SetPort(context.WithoutCancel(e), l.Device, l.Port, true))
}
