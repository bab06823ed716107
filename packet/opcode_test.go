package packet

import (
	"strings"
	"testing"
)

// assigned is the table of the specification for RC: operation, name, bytes of BTH and extended
// headers, whether a payload is allowed, and the services that have the operation.
var assigned = []struct {
	op       int
	name     string
	len      int
	payload  bool
	services string
	class    string // q: request, r: request that consumes a receive, a: reply
}{
	{0x00, "SEND_FIRST", 12, true, "RC UC XRC", "r"},
	{0x01, "SEND_MIDDLE", 12, true, "RC UC XRC", "r"},
	{0x02, "SEND_LAST", 12, true, "RC UC XRC", "r"},
	{0x03, "SEND_LAST_IMM", 16, true, "RC UC XRC", "r"},
	{0x04, "SEND_ONLY", 12, true, "RC UC XRC UD", "r"},
	{0x05, "SEND_ONLY_IMM", 16, true, "RC UC XRC UD", "r"},
	{0x06, "WRITE_FIRST", 28, true, "RC UC XRC", "q"},
	{0x07, "WRITE_MIDDLE", 12, true, "RC UC XRC", "q"},
	{0x08, "WRITE_LAST", 12, true, "RC UC XRC", "q"},
	{0x09, "WRITE_LAST_IMM", 16, true, "RC UC XRC", "r"},
	{0x0a, "WRITE_ONLY", 28, true, "RC UC XRC", "q"},
	{0x0b, "WRITE_ONLY_IMM", 32, true, "RC UC XRC", "r"},
	{0x0c, "READ_REQUEST", 28, false, "RC XRC", "q"},
	{0x0d, "READ_RESPONSE_FIRST", 16, true, "RC XRC", "a"},
	{0x0e, "READ_RESPONSE_MIDDLE", 12, true, "RC XRC", "a"},
	{0x0f, "READ_RESPONSE_LAST", 16, true, "RC XRC", "a"},
	{0x10, "READ_RESPONSE_ONLY", 16, true, "RC XRC", "a"},
	{0x11, "ACKNOWLEDGE", 16, false, "RC XRC", "a"},
	{0x12, "ATOMIC_ACKNOWLEDGE", 24, false, "RC XRC", "a"},
	{0x13, "COMPARE_SWAP", 40, false, "RC XRC", "q"},
	{0x14, "FETCH_ADD", 40, false, "RC XRC", "q"},
	{0x16, "SEND_LAST_INVALIDATE", 16, true, "RC XRC", "r"},
	{0x17, "SEND_ONLY_INVALIDATE", 16, true, "RC XRC", "r"},
	{0x1c, "FLUSH", 32, false, "RC", "q"},
	{0x1d, "ATOMIC_WRITE", 28, true, "RC", "q"},
}

func TestOpcodeTableMatchesSpecification(t *testing.T) {
	seen := map[Opcode]bool{OpcodeCNP: true}
	for _, row := range assigned {
		for name := range strings.FieldsSeq(row.services) {
			service := map[string]Service{"RC": RC, "UC": UC, "XRC": XRC, "UD": UD}[name]
			o := Opcode(int(service) | row.op)
			seen[o] = true
			want := row.len
			switch {
			case service == XRC && row.class != "a":
				want += XRCETHLen
			case service == UD:
				want += DETHLen
			}
			in := o.Info()
			if !in.Valid || o.String() != name+"_"+row.name || in.HeaderLen != want || in.Payload != row.payload ||
				in.Request != (row.class != "a") || in.ConsumesRecv != (row.class == "r") || in.Service != service || o.Service() != service {
				t.Errorf("%#02x: %+v\nwant %s_%s, %d bytes, payload %v, class %s", o, *in, name, row.name, want, row.payload, row.class)
			}
			if in.HeaderLen > MaxHeaderLen {
				t.Errorf("%v: %d bytes do not fit into MaxHeaderLen", o, in.HeaderLen)
			}
			checkPosition(t, o)
			checkResponse(t, o, row.op)
		}
	}
	for o := range 256 {
		if o := Opcode(o); o.Info().Valid != seen[o] {
			t.Errorf("%v: Valid is %v", o, !seen[o])
		}
	}
}

// checkResponse compares the response in the table with the one that the specification names.
func checkResponse(t *testing.T, o Opcode, op int) {
	t.Helper()
	want := map[int]Kind{ReadRequest: KindReadResponse, Flush: KindReadResponse, AtomicWrite: KindReadResponse,
		CompareSwap: KindAtomicAck, FetchAdd: KindAtomicAck}[op]
	own := want != KindNone
	in := o.Info()
	if in.Request && !own {
		want = KindAck
	}
	if s := o.Service(); s == UC || s == UD {
		want = KindNone
	}
	if in.Response != want || in.Kind.HasOwnResponse() != own {
		t.Errorf("%v: response kind %d, own %v, want %d, %v", o, in.Response, in.Kind.HasOwnResponse(), want, own)
	}
}

// checkPosition compares the position in the table with the one in the name.
func checkPosition(t *testing.T, o Opcode) {
	t.Helper()
	p := o.Info().Position
	starts := !strings.Contains(o.String(), "_LAST") && !strings.Contains(o.String(), "_MIDDLE")
	ends := !strings.Contains(o.String(), "_FIRST") && !strings.Contains(o.String(), "_MIDDLE")
	if p.StartsMessage() != starts || p.EndsMessage() != ends {
		t.Errorf("%v: starts %v, ends %v", o, p.StartsMessage(), p.EndsMessage())
	}
}

func TestUnassignedOpcodesAndServicesHaveNames(t *testing.T) {
	if got, want := Opcode(0x15).String(), "Opcode(0x15)"; got != want {
		t.Errorf("String returned %q, want %q", got, want)
	}
	if in := OpcodeCNP.Info(); OpcodeCNP.String() != "CNP" || in.HeaderLen != BTHLen || in.Request || !in.Payload {
		t.Errorf("row of CNP: %+v", *in)
	}
	for s, want := range map[Service]string{RC: "RC", UC: "UC", RD: "RD", UD: "UD", CNP: "CNP", XRC: "XRC", 0xe0: "Service(0xe0)"} {
		if s.String() != want {
			t.Errorf("%v, want %s", s, want)
		}
	}
}
