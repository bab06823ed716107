package main

import (
	"context"
	"errors"
	"time"
)

type linkCmd struct {
	daemonFlags
	Device string        `arg:"" name:"nic" complete:"<nics>" help:"The NIC."`
	State  string        `arg:"" enum:"up,down,flap" help:"What the link becomes: up, down, or down for a time (flap)."`
	For    time.Duration `placeholder:"DURATION" default:"1s" help:"How long the link is down with flap."`
}

func (l *linkCmd) Run(e *env) error {
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetLink(e, l.Device, l.State == "up"); err != nil || l.State != "flap" {
		return err
	}
	select {
	case <-time.After(l.For):
	case <-e.Done(): // Ctrl-C shortens the time
	}
	return errors.Join(e.Err(), c.SetLink(context.WithoutCancel(e), l.Device, true))
}
