package attach

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/mrtable"
)

// A resource is something that clients use of the daemon's process and of the machine, and that can
// run out for all of them.
type resource int

const (
	mappings    resource = iota // of the process: vm.max_map_count
	descriptors                 // of the process: RLIMIT_NOFILE
	memory                      // bytes: rings and, by estimate, the daemon's heap
	populated                   // bytes that registrations made the kernel provide
	addresses                   // bytes of address space in mappings of registered files
	waiting                     // requests and closing sockets that may wait for the client, each with a thread
	resources
)

var resourceNames = [resources]string{
	"mappings", "descriptors", "bytes of memory", "bytes of populated memory", "bytes of address space", "waiting requests",
}

// amounts are amounts of each resource.
type amounts [resources]uint64

func (a amounts) plus(b amounts) amounts {
	for i := range a {
		a[i] += b[i]
	}
	return a
}

// A budget shares resources between users: none may have more than remains free. So the first user
// gets at most a half, and another always finds something left. What belongs to the daemon itself
// is not in the budget.
type budget struct {
	total amounts

	mu       sync.Mutex // an engine may wait for it
	used     amounts
	users    map[uint32]*amounts
	released *sync.Cond
}

// Estimates of what the daemon uses for a client, beside its rings. A ring counts twice: the daemon
// copies work requests.
const (
	connectionBytes  = 128 << 10 // buffers, goroutines
	queuePairBytes   = 16 << 10
	objectBytes      = 1 << 10
	connDescriptors  = 3 // socket, pidfd, and pidfd of the process whose memory is registered
	addressSpace     = 1 << 46
	maxWaiting       = 2048 // Go allows a program 10,000 threads
	reservedFraction = 8    // of mappings and descriptors, for the daemon itself
)

var connectionCost = amounts{descriptors: connDescriptors, memory: connectionBytes}

// newBudget returns a budget of what the system allows the process. Go raises the limit of
// descriptors to the hard one when a program starts.
func newBudget() *budget {
	b := &budget{users: map[uint32]*amounts{}}
	b.released = sync.NewCond(&b.mu)
	b.total = amounts{
		mappings: systemValue("/proc/sys/vm/max_map_count", 65530), descriptors: 1 << 20,
		memory: memoryTotal() * 3 / 4, populated: memoryTotal(), addresses: addressSpace, waiting: maxWaiting,
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		b.total[descriptors] = min(b.total[descriptors], limit.Cur)
	}
	for _, r := range []resource{mappings, descriptors} {
		b.total[r] -= b.total[r] / reservedFraction
	}
	return b
}

// systemValue reads a number from a file of the system.
func systemValue(path string, otherwise uint64) uint64 {
	text, err := os.ReadFile(path)
	if n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil {
		return n
	}
	return otherwise
}

// memoryTotal returns the memory of the machine, or what the control group has of it.
func memoryTotal() uint64 {
	var info unix.Sysinfo_t
	total := uint64(1 << 30)
	if unix.Sysinfo(&info) == nil {
		total = uint64(info.Totalram) * uint64(info.Unit)
	}
	if text, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		for line := range bytes.Lines(text) {
			if path, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::")); ok {
				total = min(total, systemValue("/sys/fs/cgroup"+string(path)+"/memory.max", total))
			}
		}
	}
	return total
}

// take takes resources for a user. The error names the resource, and what the user has of it.
func (b *budget) take(uid uint32, n amounts) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked(uid, n)
}

// await is take that waits until the user may have n.
func (b *budget) await(uid uint32, n amounts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.takeLocked(uid, n) != nil {
		b.released.Wait()
	}
}

func (b *budget) takeLocked(uid uint32, n amounts) error {
	user := b.users[uid]
	if user == nil {
		user = &amounts{}
	}
	for r := range resources {
		if n[r] == 0 {
			continue
		}
		if free := b.total[r] - b.used[r]; n[r] > free || user[r]+n[r] > free-n[r] {
			no := syscall.ENOMEM
			if r == descriptors {
				no = syscall.EMFILE
			}
			return errorf(no, "user %d has %d %s and needs %d more; %d of the daemon's %d are free, and no user may have more than remain free",
				uid, user[r], resourceNames[r], n[r], free, b.total[r])
		}
	}
	b.used, *user = b.used.plus(n), user.plus(n)
	b.users[uid] = user
	return nil
}

// release releases what take took.
func (b *budget) release(uid uint32, n amounts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	user := b.users[uid]
	for r := range resources {
		b.used[r] -= n[r]
		user[r] -= n[r]
	}
	if *user == (amounts{}) {
		delete(b.users, uid)
	}
	b.released.Broadcast()
}

// UserInfo is what the clients of a user use together.
type UserInfo struct {
	UID         uint32 `json:"uid"`
	Connections int    `json:"connections"`
	Mappings    uint64 `json:"mappings"`
	Descriptors uint64 `json:"descriptors"`
	Memory      uint64 `json:"memory"`    // bytes
	Populated   uint64 `json:"populated"` // bytes
	Waiting     uint64 `json:"waiting"`   // requests
}

func (b *budget) info() (list []UserInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, uid := range slices.SortedFunc(maps.Keys(b.users), cmp.Compare) {
		u := b.users[uid]
		list = append(list, UserInfo{UID: uid, Mappings: u[mappings], Descriptors: u[descriptors], Memory: u[memory],
			Populated: u[populated], Waiting: u[waiting]})
	}
	return list
}

// An account is what the objects of a connection use. The connection's lock guards it.
type account struct {
	budget *budget
	uid    uint32
	held   amounts
}

func (a *account) take(n amounts) error {
	err := a.budget.take(a.uid, n)
	if err == nil {
		a.held = a.held.plus(n)
	}
	return err
}

func (a *account) release(n amounts) {
	for r := range resources {
		a.held[r] -= n[r]
	}
	a.budget.release(a.uid, n)
}

// close releases everything.
func (a *account) close() { a.release(a.held) }

// registered returns the files of a client, whose mappings are in the budget until they are
// unmapped.
func (b *budget) registered(uid uint32) *mrtable.Files {
	of := func(u mrtable.Usage) amounts {
		return amounts{mappings: uint64(u.Mappings), addresses: u.Bytes, populated: u.Populated}
	}
	return &mrtable.Files{
		Take: func(u mrtable.Usage) error { return b.take(uid, of(u)) },
		Give: func(u mrtable.Usage) { b.release(uid, of(u)) },
	}
}
