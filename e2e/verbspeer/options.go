package verbspeer

import (
	"fmt"
	"strings"
	"time"

	"softroce/verbs"
)

// Port is the TCP port of vprobe.
const Port = 18600

// Options are vprobe's command-line options.
type Options struct {
	GIDIndex int           // -g
	MTU      int           // -m, bytes
	PSN      int           // -P; negative is random
	Timeout  int           // -T, code
	Retry    int           // -Y
	RNRRetry int           // -N
	MinRNR   int           // -M, code
	RdOut    int           // -A: outstanding READs and atomics as requester
	RdIn     int           // -D: the same as responder
	Recvs    int           // -r: receives that a server posts
	RecvSize int           // -z, bytes
	Late     time.Duration // -w: delay before a server posts them
	NoRepost bool          // -n: a server posts each receive once
	Size     int           // -B: size of the buffer in bytes

	Access verbs.Access // of an Endpoint's memory region and queue pair; vprobe grants all

	// Shared places an Endpoint's buffer in memory that the daemon maps. Otherwise the daemon
	// accesses it in this process.
	Shared bool
}

// AllAccess is every access right that RC operations need.
const AllAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// Defaults returns vprobe's default options.
func Defaults() Options {
	return Options{
		GIDIndex: 1, MTU: 1024, PSN: -1, Timeout: 14, Retry: 7, RNRRetry: 7, MinRNR: 12,
		RdOut: 16, RdIn: 16, Recvs: 16, RecvSize: 65536, Size: 1 << 20, Access: AllAccess, Shared: true,
	}
}

// Args formats the options for vprobe's command line.
func (o Options) Args() string {
	d := Defaults()
	var b strings.Builder
	number := func(flag string, v, def int) {
		if v != def {
			fmt.Fprintf(&b, " %s %d", flag, v)
		}
	}
	number("-g", o.GIDIndex, d.GIDIndex)
	number("-m", o.MTU, d.MTU)
	number("-T", o.Timeout, d.Timeout)
	number("-Y", o.Retry, d.Retry)
	number("-N", o.RNRRetry, d.RNRRetry)
	number("-M", o.MinRNR, d.MinRNR)
	number("-A", o.RdOut, d.RdOut)
	number("-D", o.RdIn, d.RdIn)
	number("-r", o.Recvs, d.Recvs)
	number("-z", o.RecvSize, d.RecvSize)
	number("-w", int(o.Late.Milliseconds()), 0)
	number("-B", o.Size, d.Size)
	if o.PSN >= 0 {
		fmt.Fprintf(&b, " -P %x", o.PSN)
	}
	if o.NoRepost {
		b.WriteString(" -n")
	}
	return b.String()
}
