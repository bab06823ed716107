package main

type countersCmd struct {
	daemonFlags
	Action  string `arg:"" enum:"set" help:"set sets a counter, which then counts on."`
	Device  string `arg:"" name:"nic" complete:"<nics>" help:"The NIC."`
	Counter string `arg:"" help:"The name of the counter, as softroce show counters --all prints it."`
	Value   uint64 `arg:"" help:"The value."`
}

func (k *countersCmd) Run(e *env) error {
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.SetCounter(e, k.Device, k.Counter, k.Value)
}
