package nic

import (
	"testing"
	"time"
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
