package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

type sysfsCmd struct {
	daemonFlags
	Watch bool `short:"w" help:"Update the files every second, until Ctrl-C."`
}

func (s *sysfsCmd) Run(e *env) error {
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	for first := true; ; first = false {
		dir, err := c.OpenTree(e)
		if s.Watch && e.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		path, err := pathOf(dir)
		dir.Close()
		if err != nil {
			return err
		}
		if first {
			fmt.Fprintln(e.out, filepath.Join(path, "sys"))
		}
		if !s.Watch {
			return nil
		}
		select {
		case <-e.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

// pathOf returns the path of a directory that the daemon has opened.
func pathOf(dir *os.File) (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return "", err
	}
	opened, err := dir.Stat()
	if err != nil {
		return "", err
	}
	if named, err := os.Stat(path); err != nil || !os.SameFile(opened, named) {
		return "", fmt.Errorf("the daemon's directory %s does not exist here: the daemon has other mounts, as in another container", path)
	}
	return path, nil
}
