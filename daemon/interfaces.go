package daemon

import (
	"net"
	"strings"
)

// interfaceNames lists the host's interfaces that a NIC could stand on.
func interfaceNames() string {
	list, err := net.Interfaces()
	if err != nil {
		return "none that can be listed: " + err.Error()
	}
	var names []string
	for _, i := range list {
		names = append(names, i.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
