package main

import (
	"encoding"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"softroce/attach"
	"softroce/cm"
	"softroce/internal/check"
	"softroce/internal/daemon"
	"softroce/internal/liveplay"
	"softroce/internal/perf"
	"softroce/internal/replay"
	"softroce/internal/scenario"
	"softroce/internal/show"
	"softroce/nic"
)

// The keys of all JSON output are in snake_case, and one key has one type in all that show prints.
func TestJSONKeysAreUniform(t *testing.T) {
	shown := map[string]string{} // type by key
	for _, v := range []any{
		show.DeviceLine{}, nic.ContextInfo{}, nic.PDInfo{}, nic.MRInfo{}, nic.MWInfo{}, nic.DMInfo{}, nic.CQInfo{}, nic.SRQInfo{},
		nic.QPInfo{}, nic.AHInfo{}, nic.GroupInfo{}, nic.FaultInfo{}, nic.CongestionInfo{}, cm.IDInfo{}, attach.UserInfo{}, daemon.Counters{}, daemon.GID{},
	} {
		checkKeys(t, reflect.TypeOf(v), shown)
	}
	for _, key := range []string{"client", "pid", "uid", "pdn", "mrn", "cqn", "srqn", "lqpn", "send_cqn", "recv_cqn"} {
		if shown[key] != "number" {
			t.Errorf("%s is a %q, want a number", key, shown[key])
		}
	}
	for _, v := range []any{check.Report{}, replay.Report{}, liveplay.Report{}, perf.Result{}, scenario.Result{}} {
		checkKeys(t, reflect.TypeOf(v), nil)
	}
}

var snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// checkKeys checks the fields of a type and of the types in it. types has the JSON type of each
// key, or is nil if a key may have several.
func checkKeys(t *testing.T, v reflect.Type, types map[string]string) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		checkKeys(t, v.Elem(), types)
		return
	case reflect.Struct:
	default:
		return
	}
	if jsonType(v) != "object" {
		return
	}
	for i := range v.NumField() {
		f := v.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && key == "":
			checkKeys(t, f.Type, types)
			continue
		case !f.IsExported() || key == "-":
			continue
		case !snakeCase.MatchString(key):
			t.Errorf("%v.%s: key %q is not in snake_case", v, f.Name, key)
		}
		is := jsonType(f.Type)
		if was, ok := types[key]; ok && was != is {
			t.Errorf("%v: %s is a %s, and elsewhere a %s", v, key, is, was)
		}
		if types != nil {
			types[key] = is
		}
		checkKeys(t, f.Type, types)
	}
}

var (
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
)

// jsonType returns the JSON type of the values of a type.
func jsonType(v reflect.Type) string {
	switch {
	case v.Kind() == reflect.Pointer:
		return jsonType(v.Elem())
	case reflect.PointerTo(v).Implements(textMarshaler):
		return "string"
	case reflect.PointerTo(v).Implements(jsonMarshaler):
		return "custom"
	}
	switch v.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Slice, reflect.Array:
		return "array of " + jsonType(v.Elem())
	case reflect.Struct, reflect.Map:
		return "object"
	}
	return "number"
}
