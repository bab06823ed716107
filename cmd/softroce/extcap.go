package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"softroce/capture"
	"softroce/internal/control"
	"softroce/internal/daemon"
)

// extcapCmd is what Wireshark and tshark run: see "Adding Capture Interfaces And Log Sources Using
// Extcap" in the Wireshark Developer's Guide. Wireshark asks for the interfaces, then for the link
// types and the arguments of each, and at last for the packets.
type extcapCmd struct {
	daemonFlags
	Version    string `name:"extcap-version" help:"The version of Wireshark."`
	Interfaces bool   `name:"extcap-interfaces" help:"List the interfaces."`
	DLTs       bool   `name:"extcap-dlts" help:"List the link types of an interface."`
	Config     bool   `name:"extcap-config" help:"List the arguments of an interface."`
	Interface  string `name:"extcap-interface" help:"The interface."`
	Conditions string `name:"extcap-capture-filter" help:"The capture filter: conditions of a fault rule. Without --capture, only checked."`
	Capture    bool   `help:"Write the packets of an interface."`
	FIFO       string `name:"fifo" help:"Where to write them."`
	QP         string `name:"qp" help:"Only packets of this queue pair."`
}

// allNICs is the interface with the packets of all NICs. It is listed without a daemon too: a
// capture from it says why there are no packets.
const allNICs = "softroce"

// extcapInterface returns the name of a NIC in the list of Wireshark, where it must differ from
// those of network interfaces.
func extcapInterface(nic string) string {
	if strings.HasPrefix(nic, allNICs) && nic != allNICs {
		return nic
	}
	return allNICs + "-" + nic
}

func (x *extcapCmd) Run(e *env) error {
	var err error
	switch {
	case x.Interfaces:
		_, err = fmt.Fprint(e.out, x.list(e))
	case x.DLTs:
		_, err = fmt.Fprintln(e.out, "dlt {number=1}{name=EN10MB}{display=Ethernet}")
	case x.Config:
		_, err = fmt.Fprintln(e.out, "arg {number=0}{call=--qp}{display=Queue pair}{type=string}"+
			"{tooltip=Only packets to and from the queue pair of this number, such as 17 or 0x11}{validation=^(0x[0-9a-fA-F]+|[0-9]+)?$}")
	case x.Capture && x.FIFO != "":
		if err = x.record(e); err != nil {
			endFIFO(e, x.FIFO)
		}
	case x.Conditions != "":
		if _, err := capture.ParseFilter(x.Conditions); err != nil {
			fmt.Fprintln(e.out, oneLine(err)) // any output means that the filter is wrong
		}
	default:
		err = usagef("Wireshark runs this command; see softroce install-extcap")
	}
	return err
}

// list returns the interfaces. Without a daemon Wireshark must get an answer, too.
func (x *extcapCmd) list(e *env) string {
	b := fmt.Appendf(nil, "extcap {version=%s}{help=https://www.wireshark.org/docs/dfref/i/infiniband.html}\n", release())
	nics := (&env{Context: e}).nics(e.socket)
	state := ""
	if len(nics) == 0 {
		state = " (no daemon)"
	}
	b = fmt.Appendf(b, "interface {value=%s}{display=softroce: all NICs%s}\n", allNICs, state)
	for _, n := range nics {
		b = fmt.Appendf(b, "interface {value=%s}{display=softroce: RDMA NIC %s}\n", extcapInterface(n.value), n.value)
	}
	return string(b)
}

// record writes packets until Wireshark ends the capture: it sends SIGTERM, or closes the FIFO.
func (x *extcapCmd) record(e *env) error {
	found, err := control.Find(e, e.socket)
	if err != nil {
		return err
	}
	defer found.Close()
	snap, err := snapshot(e, found.Client)
	if err != nil {
		return err
	}
	o := daemon.RecordOptions{Output: x.FIFO}
	if o.Device, err = nicOf(snap, x.Interface); err != nil {
		return err
	}
	filters, err := x.filters(snap, o.Device)
	if err != nil {
		return err
	}
	for _, f := range filters {
		if err := o.Set("filter", f); err != nil {
			return err
		}
	}
	_, err = daemon.Record(e, found.Socket, o)
	if errors.Is(err, syscall.EPIPE) || e.Err() != nil {
		return nil
	}
	return err
}

// endFIFO opens and closes a FIFO, without which tshark waits for packets and does not print the
// error. The reader may come later than the error.
func endFIFO(ctx context.Context, path string) {
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			f.Close()
		}
	}()
	select {
	case <-opened:
	case <-ctx.Done():
	}
}

// nicOf returns the NIC of an interface, and "" for all.
func nicOf(s *daemon.Snapshot, iface string) (string, error) {
	if iface == allNICs {
		return "", nil
	}
	have := []string{allNICs}
	for i := range s.Devices {
		name := s.Devices[i].Name
		if extcapInterface(name) == iface {
			return name, nil
		}
		have = append(have, extcapInterface(name))
	}
	return "", fmt.Errorf("--extcap-interface %s: the daemon has no such NIC (have: %s)", iface, strings.Join(have, ", "))
}

// filters returns those of the capture. A packet names the queue pair that it is for, so what a
// queue pair sends is found by its peer.
func (x *extcapCmd) filters(s *daemon.Snapshot, nic string) ([]string, error) {
	if x.QP == "" {
		if x.Conditions == "" {
			return nil, nil
		}
		return []string{x.Conditions}, nil
	}
	n, err := strconv.ParseUint(x.QP, 0, 24)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("queue pair %q: want a number such as 17 or 0x11, from 1 to 0xffffff", x.QP)
	}
	list := []string{fmt.Sprintf("qp %d %s", n, x.Conditions)}
	for i := range s.Devices {
		d := &s.Devices[i]
		for _, q := range d.QPs {
			if q.QPN == uint32(n) && q.RemoteQPN != 0 && (nic == "" || nic == d.Name) {
				list = append(list, fmt.Sprintf("qp %d src %s dst %s %s", q.RemoteQPN, q.Src, q.Dst, x.Conditions))
			}
		}
	}
	return list, nil
}

type installExtCmd struct {
	Dir string `placeholder:"DIR" complete:"<files>" help:"Wireshark's folder of extcap programs (default: the one that tshark or Wireshark names)."`
}

// extcapFolder matches the folders that Wireshark names, the user's own and that of all users.
// Before release 4.2 there is only the latter.
var extcapFolder = regexp.MustCompile(`(?mi)^(Personal )?(?:Global )?Extcap path:\s*(.+)$`)

func (i *installExtCmd) Run(e *env) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	dir := i.Dir
	if dir == "" {
		if dir, err = wiresharkFolder(e); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return installHint(err)
	}
	path := filepath.Join(dir, "softroce")
	// The script replaces an older one in a single step, since Wireshark may be running it.
	script := "#!/bin/sh\nexec '" + strings.ReplaceAll(program, "'", `'\''`) + "' extcap \"$@\"\n"
	next := filepath.Join(dir, ".softroce.new")
	if err := os.WriteFile(next, []byte(script), 0o755); err != nil {
		return installHint(err)
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.out, "installed %s; tshark -D lists the NICs\n", path)
	return err
}

func installHint(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w; run as root, or name a folder of your own with --dir, and in WIRESHARK_EXTCAP_DIR for Wireshark", err)
	}
	return err
}

// wiresharkFolder returns where Wireshark looks for extcap programs: those of the user, unless that
// is root.
func wiresharkFolder(ctx context.Context) (string, error) {
	if dir := os.Getenv("WIRESHARK_EXTCAP_DIR"); dir != "" {
		return dir, nil
	}
	for _, program := range []string{"tshark", "wireshark"} {
		out, err := exec.CommandContext(ctx, program, "-G", "folders").Output()
		if err != nil {
			continue
		}
		dir := ""
		for _, m := range extcapFolder.FindAllStringSubmatch(string(out), -1) {
			if personal := m[1] != ""; dir == "" || personal == (os.Geteuid() != 0) {
				dir = m[2]
			}
		}
		if dir != "" {
			return dir, nil
		}
	}
	return "", errors.New("neither tshark nor wireshark runs, which name the folder; --dir names it, too")
}
