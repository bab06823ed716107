package e2e

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
)

// attacks are the programs of attackers. Each prints inProgress when the attack is, and goes on
// until it is killed.
var attacks = map[string]func(){
	"rings":               attackWithRings,
	"descriptors":         attackWithDescriptors,
	"connections":         attackWithConnections,
	"silence":             attackWithSilence,
	"snapshots":           attackWithSnapshots,
	"one file":            attackWithOneFile,
	"holes":               attackWithHoles,
	"holes in a buffer":   attackWithHolesInBuffer,
	"holes in rings":      attackWithHolesInRings,
	"bandwidth":           attackWithBandwidth,
	"slow memory":         attackWithSlowMemory,
	"slow target":         attackWithSlowTarget,
	"slow registration":   attackWithSlowRegistration,
	"slow faults":         attackWithSlowFaults,
	"messages":            attackWithMessages,
	"ring contents":       attackWithRingContents,
	"file without access": attackWithPathDescriptor,
}

const inProgress = "the attack is in progress\n"

// achieved counts what the attack of this process has done: objects that it created, messages that
// it sent, rings that it overwrote.
var achieved atomic.Uint64

// holdAttack reports that the attack is in progress once it has achieved something, and keeps what
// it has. An attack that the daemon turns away shows nothing.
func holdAttack() {
	for achieved.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Print(inProgress)
	select {}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// An attackConn is a connection that sends requests without package verbs, so that the attacker
// itself holds nothing.
type attackConn struct {
	*control.Client
	pd, cq uint32
}

func dialAttack() (*attackConn, error) {
	c, err := control.Dial(context.Background(), "")
	if err != nil {
		return nil, err
	}
	return &attackConn{Client: c}, nil
}

// openAttack connects and opens a device, with a PD and a CQ.
func openAttack() (*attackConn, error) {
	c, err := dialAttack()
	if err != nil {
		return nil, err
	}
	var pd abi.HandleReply
	var cq abi.CreateCQReply
	if err = c.request(abi.OpOpenDevice, 4, nil, abi.OpenDeviceRequest{}); err == nil {
		err = c.request(abi.OpAllocPD, 0, &pd)
	}
	if err == nil {
		err = c.request(abi.OpCreateCQ, 1, &cq, abi.CreateCQRequest{Entries: 1})
	}
	c.pd, c.cq = pd.Handle, cq.Handle
	return c, err
}

// request sends a request and closes the descriptors of its reply.
func (c *attackConn) request(op uint16, want int, reply any, body ...any) error {
	p, err := c.Call(context.Background(), control.Request{Name: fmt.Sprint("operation ", op), Op: op, Body: body, Reply: reply, Want: want})
	p.CloseFDs()
	return err
}

// attackDuration bounds the part of an attack that creates objects.
const attackDuration = 8 * time.Second

// createMany has several connections create objects until the daemon refuses.
func createMany(connections int, create func(*attackConn) error) {
	var all sync.WaitGroup
	end := time.Now().Add(attackDuration)
	for i := range connections {
		c, err := openAttack()
		if err != nil {
			fmt.Printf("connection %d: %v\n", i, err)
			continue
		}
		all.Go(func() {
			for n := 0; ; n++ {
				if err := create(c); err != nil || time.Now().After(end) {
					fmt.Printf("connection %d: %d objects, then %v\n", i, n, err)
					return
				}
				achieved.Add(1)
			}
		})
	}
	all.Wait()
}

// createQP creates a queue pair whose queues hold depth work requests.
func (c *attackConn) createQP(depth uint32) error {
	return c.request(abi.OpCreateQP, 1, nil, abi.CreateQPRequest{PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, Type: uint32(verbs.RC),
		Cap: abi.QPCap{MaxSendWR: depth, MaxRecvWR: depth}})
}

// attackWithRings uses up the memory of the daemon: each queue has a ring.
func attackWithRings() {
	createMany(6, func(c *attackConn) error { return c.createQP(32768) })
	holdAttack()
}

// attackWithDescriptors uses up the descriptors of the daemon: each queue has an event pipe.
func attackWithDescriptors() {
	createMany(4, func(c *attackConn) error {
		return c.request(abi.OpCreateCQ, 2, nil, abi.CreateCQRequest{Entries: 1, Flags: abi.CQOwnChannel})
	})
	holdAttack()
}

// attackWithConnections uses up the connections, each of which has an open device.
func attackWithConnections() {
	const more = 2000 // than the daemon has descriptors for
	var all []*attackConn
	for range more {
		c, err := openAttack()
		if err != nil {
			fmt.Printf("%d connections, then %v\n", len(all), err)
			break
		}
		all = append(all, c)
		achieved.Add(1)
	}
	holdAttack()
}

// attackWithSilence has connections that send requests and read no reply.
func attackWithSilence() {
	for range 50 {
		sock := must(dialSilent())
		sock.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		for range 100000 {
			if control.Write(sock, abi.Message(nil, abi.Header{Version: abi.Version, Op: abi.OpListDevices})) != nil {
				break
			}
			achieved.Add(1)
		}
	}
	holdAttack()
}

// attackWithSnapshots has many objects, and asks for snapshots of them all the time.
func attackWithSnapshots() {
	const queuePairs = 1000
	for range 2 {
		c := must(openAttack())
		for range queuePairs {
			if err := c.createQP(1); err != nil {
				fmt.Println(err)
				break
			}
		}
	}
	for i := range 24 {
		c := must(dialAttack())
		go func() {
			for {
				err := c.request(abi.OpSnapshot, 1, &abi.SnapshotReply{})
				if err != nil && c.Ended() {
					fmt.Printf("connection %d: %v\n", i, err)
					return
				}
				if err == nil {
					achieved.Add(1)
				}
			}
		}()
	}
	holdAttack()
}

// attackWithPathDescriptor opens an XRC domain of a file that it may not read.
func attackWithPathDescriptor() {
	c := must(openAttack())
	fd := must(unix.Open(domainFile(control.SocketPath("")), unix.O_PATH|unix.O_CLOEXEC, 0))
	_, err := c.Call(context.Background(), control.Request{Name: "open XRCD", Op: abi.OpOpenXRCD, Body: []any{abi.OpenXRCDRequest{}},
		FDs: []int{fd}, Reply: &abi.HandleReply{}})
	fmt.Printf("XRC domain: %v\n", err)
	achieved.Add(1)
	holdAttack()
}
