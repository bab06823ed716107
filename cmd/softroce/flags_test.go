package main

import "testing"

// A letter stands for the same flag in all commands. pingpong has the letters of ibv_rc_pingpong.
func TestFlagLettersHaveOneMeaning(t *testing.T) {
	letters := map[rune]string{'d': "device"}
	for _, c := range commands(model(t).Model) {
		for _, f := range c.Flags {
			if f.Short == 0 || c.Name == "pingpong" {
				continue
			}
			if name, ok := letters[f.Short]; ok && name != f.Name {
				t.Errorf("-%c is --%s in %s, and --%s elsewhere", f.Short, f.Name, c.Name, name)
			}
			letters[f.Short] = f.Name
		}
	}
}

// Commands that use no daemon have no --socket.
func TestSocketFlagIsWhereItMatters(t *testing.T) {
	uses := map[string]bool{}
	for _, name := range []string{"run", "daemon", "perf", "pingpong", "show", "explain", "top", "link", "fault", "counters", "congestion", "pkeys", "sysfs", "device-plugin", "capture", "answer"} {
		uses[name] = true
	}
	for _, c := range commands(model(t).Model) {
		has := false
		for _, f := range c.Flags {
			has = has || f.Name == "socket"
		}
		if has != uses[c.Name] {
			t.Errorf("%s has --socket: %v", c.Name, has)
		}
	}
}
