package main

import (
	"softroce/internal/nicspec"
)

type pkeysCmd struct {
	daemonFlags
	Device string `arg:"" name:"nic" complete:"<nics>" help:"The NIC."`
	Keys   string `arg:"" help:"The P_Key table: keys in index order, separated by '+', such as 0xffff+0x8001; 0 leaves an index empty."`
}

func (p *pkeysCmd) Run(e *env) error {
	keys, err := nicspec.ParsePKeys(p.Keys)
	if err != nil {
		return &usageError{err}
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.SetPKeys(e, p.Device, keys)
}
