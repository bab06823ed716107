package nic

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/wire"
)

// An engine that keeps its P at first sleeps no longer than one that does not.
func TestSleepHasItsLengthWithAndWithoutP(t *testing.T) {
	for _, c := range []struct{ sleep, kept, rest time.Duration }{
		{time.Nanosecond, time.Nanosecond, 0},
		{briefSleep, briefSleep, 0},
		{briefSleep + time.Millisecond, briefSleep, time.Millisecond},
		{endless, briefSleep, endless - briefSleep},
	} {
		if kept, rest := (&poller{keepsP: true}).split(c.sleep); kept != c.kept || rest != c.rest {
			t.Errorf("%v: %v with the P and %v without it, want %v and %v", c.sleep, kept, rest, c.kept, c.rest)
		}
		if kept, rest := (&poller{}).split(c.sleep); kept != 0 || rest != c.sleep {
			t.Errorf("%v of an engine that does not keep its P: %v with it and %v without it", c.sleep, kept, rest)
		}
	}
}

// A link's descriptors end a sleep, in which they are in an epoll set. Many of one link, and those
// that a set does not take, such as files, are waited for without it.
func TestPollerWaitsForLinks(t *testing.T) {
	const set = 1 // its index in poller.fds
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	check(t, err)
	defer file.Close()
	ready := eventfd(t, 1)
	many := []int{ready}
	for range maxWatched {
		many = append(many, eventfd(t, 0))
	}
	for _, c := range []struct {
		name string
		fds  []int
		at   int // index in poller.fds of what ends the sleep
	}{
		{"one", []int{ready}, set},
		{"few", many[:maxWatched], set},
		{"many", many, set + 1},
		{"file", []int{int(file.Fd())}, set + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p poller
			check(t, p.open())
			defer p.close()
			p.list([]*Device{{link: fdLink{fds: c.fds}}})
			p.wait(0, int64(10*time.Second))
			if p.fds[c.at].Revents == 0 {
				t.Errorf("%+v, want an event of the descriptor at %d", p.fds, c.at)
			}
			if n, err := unix.EpollWait(p.links, p.events[:], 0); n != 0 || err != nil {
				t.Errorf("%d descriptors are ready in the set after the sleep, %v", n, err)
			}
		})
	}
}

// A link's descriptor that another file has replaced during a sleep ends the next one.
func TestPollerWaitsForReplacedDescriptor(t *testing.T) {
	var p poller
	check(t, p.open())
	defer p.close()
	fd := eventfd(t, 0)
	d := []*Device{{link: fdLink{fds: []int{fd}}}}
	p.list(d)
	p.watch() // the beginning of a sleep
	check(t, unix.Dup3(eventfd(t, 1), fd, unix.O_CLOEXEC))
	p.unwatch()
	p.list(d)
	p.wait(0, int64(10*time.Second))
	if p.fds[1].Revents == 0 {
		t.Error("the sleep did not end because of the descriptor")
	}
}

// An fdLink is a link with some descriptors.
type fdLink struct {
	wire.Link
	fds []int
}

func (l fdLink) AppendFDs(fds []unix.PollFd) []unix.PollFd {
	for _, fd := range l.fds {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return fds
}

// eventfd returns an eventfd that lasts until the test ends.
func eventfd(t testing.TB, value uint) int {
	fd, err := unix.Eventfd(value, unix.EFD_CLOEXEC)
	check(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// BenchmarkWait measures a sleep that ends at once, for a number of descriptors of a link.
func BenchmarkWait(b *testing.B) {
	for _, n := range []int{1, 2, 8, 32} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var p poller
			check(b, p.open())
			defer p.close()
			var l fdLink
			for range n {
				l.fds = append(l.fds, eventfd(b, 1))
			}
			d := []*Device{{link: l}}
			for b.Loop() {
				p.list(d)
				p.wait(0, 0)
			}
		})
	}
}
