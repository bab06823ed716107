package transport

import (
	"reflect"
	"testing"
)

// TestCountersAdd fails if Counters gets a field that is not a number of 64 bits, or an array of
// them: Add adds words.
func TestCountersAdd(t *testing.T) {
	var a, b Counters
	total := 0
	var set func(v reflect.Value)
	set = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Uint64:
			total++
			v.SetUint(uint64(total))
		case reflect.Array:
			for i := range v.Len() {
				set(v.Index(i))
			}
		default:
			t.Fatalf("a field of type %v", v.Type())
		}
	}
	for _, c := range []*Counters{&a, &b} {
		total = 0
		for i := range reflect.TypeFor[Counters]().NumField() {
			set(reflect.ValueOf(c).Elem().Field(i))
		}
	}
	a.Add(&b)
	for i, n := range a.values() {
		if n != 2*uint64(i+1) {
			t.Errorf("word %d: %d, want %d", i, n, 2*(i+1))
		}
	}
	if total != len(a.values()) {
		t.Errorf("%d words, %d of them in fields", len(a.values()), total)
	}
}
