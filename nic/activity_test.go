package nic_test

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/nic"
	"softroce/nic/nictest"
)

// inThread runs f on a thread of its own and returns the ID of the thread.
func inThread(f func()) (thread int, done <-chan struct{}) {
	ids, end := make(chan int), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		defer close(end)
		ids <- unix.Gettid()
		f()
	}()
	return <-ids, end
}

// await looks at a thread until it does what is wanted.
func await(t *testing.T, o nic.Observer, thread int, want nic.Activity) {
	t.Helper()
	var got nic.Activity
	for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(nic.WatchdogTick) {
		if got = o.Look(thread); got == want {
			return
		}
	}
	t.Fatalf("the thread is seen doing %d, want %d", got, want)
}

func TestActivityOfAThread(t *testing.T) {
	t.Run("sleeps in a copy", func(t *testing.T) {
		pages, err := nictest.NewPages(1)
		if err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("userfaultfd: %v", err)
			}
			t.Skipf("userfaultfd: %v", err)
		}
		defer pages.Close()
		thread, done := inThread(func() {
			var b [1]byte
			unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &b[0], Len: 1}},
				[]unix.RemoteIovec{{Base: uintptr(pages.Address()), Len: 1}}, 0)
		})
		o := nic.NewObserver()
		defer o.Close()
		await(t, o, thread, nic.Asleep)
		if n := testing.AllocsPerRun(100, func() { o.Look(thread) }); n != 0 {
			t.Errorf("%v allocations for a look", n)
		}
		o.Close() // what the thread does cannot be found out
		if got := o.Look(thread); got != nic.Asleep {
			t.Errorf("an unknown thread does %d, want %d", got, nic.Asleep)
		}
		if err := pages.Serve(0, 1); err != nil {
			t.Fatal(err)
		}
		<-done
	})

	t.Run("sleeps elsewhere", func(t *testing.T) {
		goOn := make(chan struct{})
		thread, done := inThread(func() { <-goOn })
		o := nic.NewObserver()
		defer o.Close()
		await(t, o, thread, nic.Waiting)
		close(goOn)
		<-done
	})

	t.Run("runs", func(t *testing.T) {
		nic.AddProc(t)
		var stop atomic.Bool
		thread, done := inThread(func() {
			for !stop.Load() {
			}
		})
		o := nic.NewObserver()
		defer o.Close()
		await(t, o, thread, nic.Copying)
		await(t, o, thread, nic.Copying) // not only because the first look compares with nothing
		if n := testing.AllocsPerRun(100, func() { o.Look(thread) }); n != 0 {
			t.Errorf("%v allocations for a look", n)
		}
		stop.Store(true)
		<-done
	})
}

// A thread that is ready to run and gets no processor does not look like one that copies.
func TestThreadThatGetsNoProcessorWaits(t *testing.T) {
	var processors, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &processors); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if processors.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	var stop atomic.Bool
	defer stop.Store(true)
	_, busyDone := inThread(func() {
		unix.SchedSetaffinity(0, &one)
		for !stop.Load() {
		}
	})
	// The thread calls the kernel, and never sleeps there: other goroutines do not wait for it. It
	// gets less than a fiftieth of the processor. With SCHED_IDLE it could have none for so long
	// that the garbage collector, which waits for it between two calls, stops the process.
	random := make([]byte, 1<<20)
	other, otherDone := inThread(func() {
		unix.SchedSetaffinity(0, &one)
		unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
		for !stop.Load() {
			unix.Getrandom(random, 0)
		}
	})
	o := nic.NewObserver()
	defer o.Close()
	await(t, o, other, nic.Waiting)
	stop.Store(true)
	<-busyDone
	<-otherDone
}
