package main

import (
	"errors"
	"fmt"
	"strings"

	"softroce/nic"
)

type congestionCmd struct {
	daemonFlags
	Device string   `arg:"" name:"nic" complete:"<nics>" help:"The NIC."`
	Set    []string `arg:"" optional:"" placeholder:"PARAMETER=VALUE" help:"What to set: algorithm=dcqcn, swift or none, or a parameter, such as rp_ai_rate=40 (default: print all)."`
	JSON   bool     `help:"Print JSON."`
}

func (k *congestionCmd) Run(e *env) error {
	for _, s := range k.Set {
		if name, value, ok := strings.Cut(s, "="); !ok || name == "" || value == "" {
			return &usageError{fmt.Errorf("%q: want PARAMETER=VALUE, such as rp_ai_rate=40", s)}
		}
	}
	if k.JSON && len(k.Set) > 0 {
		return &usageError{errors.New("--json is for printing the parameters")}
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range k.Set {
		name, value, _ := strings.Cut(s, "=")
		if err := c.SetCongestion(e, k.Device, name, value); err != nil {
			return err
		}
	}
	if len(k.Set) > 0 {
		return nil
	}
	s, err := snapshot(e, c.Client)
	if err != nil {
		return err
	}
	for _, d := range s.Devices {
		if d.Name == k.Device {
			return k.print(e, &d.Congestion)
		}
	}
	var names []string
	for _, d := range s.Devices {
		names = append(names, d.Name)
	}
	return fmt.Errorf("%s: no such NIC (have: %s)", k.Device, strings.Join(names, ", "))
}

func (k *congestionCmd) print(e *env, i *nic.CongestionInfo) error {
	if k.JSON {
		return e.json(i)
	}
	fmt.Fprintf(e.out, "algorithm=%s\n", i.Algorithm)
	for _, v := range i.Params {
		fmt.Fprintf(e.out, "%s=%d\n", v.Name, v.Value)
	}
	return nil
}
