package main

import (
	"context"
	"net"
	"time"

	"softroce/internal/control"
	"softroce/internal/show"
	"softroce/verbs"
)

// A namer lists the names of things on this machine, for completion.
type namer interface {
	nics(socket string) []candidate  // of the daemon on a socket; "": of the one that commands find
	links(prefix string) []candidate // each preceded by prefix
}

// completionTimeout is how long a daemon may take to name its NICs.
const completionTimeout = time.Second

// nics implements namer.
func (e *env) nics(socket string) (list []candidate) {
	ctx, cancel := context.WithTimeout(e, completionTimeout)
	defer cancel()
	f, err := control.Find(ctx, socket)
	if err != nil {
		return nil
	}
	defer f.Close()
	nics, err := verbs.Devices(ctx, verbs.WithSocket(f.Socket))
	if err != nil {
		return nil
	}
	for _, n := range nics {
		list = append(list, candidate{n.Name, n.Netdev})
	}
	return list
}

// links implements namer.
func (e *env) links(prefix string) []candidate {
	list := []candidate{{prefix + "fabric", "other NICs of the daemon"}, {prefix + "dgram:", "Ethernet frames in UDP datagrams"}}
	interfaces, err := net.Interfaces()
	if err != nil {
		return list
	}
	for _, kind := range []candidate{{"packet:", "packet socket"}, {"udp:", "UDP socket"}, {"xdp:", "AF_XDP sockets"}, {"auto:", "the first that can be opened of xdp with zero-copy, packet, udp"}} {
		for _, i := range interfaces {
			list = append(list, candidate{prefix + kind.value + i.Name, kind.help})
		}
	}
	return list
}

func kinds() (list []candidate) {
	for _, k := range show.Kinds() {
		list = append(list, candidate{k.Name, k.Help})
	}
	return list
}
