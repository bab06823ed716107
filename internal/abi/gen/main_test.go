package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"softroce/internal/abi"
)

const committed = "../../../libverbs/core/softroce_abi.h"

func TestHeaderIsUpToDate(t *testing.T) {
	d, err := read("..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, d.header()) {
		t.Errorf("%s differs from the Go definition: run go generate ./internal/abi", committed)
	}
}

// make compiles all C files again if the header is newer than they are.
func TestHeaderThatHasNotChangedIsNotWritten(t *testing.T) {
	header := filepath.Join(t.TempDir(), "header.h")
	long := time.Unix(1e9, 0)
	if err := os.WriteFile(header, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, written := range []bool{true, false} {
		if err := os.Chtimes(header, long, long); err != nil {
			t.Fatal(err)
		}
		if err := run("..", header); err != nil {
			t.Fatal(err)
		}
		f, err := os.Stat(header)
		if err != nil {
			t.Fatal(err)
		}
		if got := !f.ModTime().Equal(long); got != written {
			t.Errorf("written: %t, want %t", got, written)
		}
	}
}

// TestCAndGoAgreeOnEveryOffset compiles a C program that prints every offset, size and constant of
// the header, and compares its output with the Go definition.
func TestCAndGoAgreeOnEveryOffset(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("skipped: gcc is not installed")
	}
	d, err := read("..")
	if err != nil {
		t.Fatal(err)
	}
	var program, want strings.Builder
	program.WriteString("#include <errno.h>\n#include <stddef.h>\n#include <stdio.h>\n#include \"softroce_abi.h\"\nint main(void)\n{\n")
	line := func(what, expr string, value any) {
		fmt.Fprintf(&program, "\tprintf(\"%s = %%llu\\n\", (unsigned long long)(%s));\n", what, expr)
		fmt.Fprintf(&want, "%s = %v\n", what, value)
	}
	for _, item := range d.items {
		switch item := item.(type) {
		case group:
			for _, c := range item.consts {
				line(c.name, c.name, c.value)
			}
		case record:
			line("sizeof "+item.name, "sizeof("+item.name+")", item.size)
			for _, f := range item.fields {
				if f.name != "" {
					line("offset of "+item.name+"."+f.name, fmt.Sprintf("offsetof(%s, %s)", item.name, f.name), f.offset)
					line("size of "+item.name+"."+f.name, fmt.Sprintf("sizeof(((%s *)0)->%s)", item.name, f.name), f.size)
				}
			}
		}
	}
	program.WriteString("\treturn 0;\n}\n")
	dir := t.TempDir()
	src, exe := filepath.Join(dir, "abi.c"), filepath.Join(dir, "abi")
	if err := os.WriteFile(src, []byte(program.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	include, _ := filepath.Abs(filepath.Dir(committed))
	out, err := exec.Command(gcc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpadded", "-I", include, "-o", exe, src).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	got, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(string(got), "\n"), strings.Split(want.String(), "\n")
	for i := range w {
		if i >= len(g) || g[i] != w[i] {
			t.Errorf("C has %q, Go has %q", g[min(i, len(g)-1)], w[i])
		}
	}
}

// The encoder writes fields one after the other, so the encoded size must be the size in memory.
func TestEncodedSizesMatchStructSizes(t *testing.T) {
	for _, v := range []any{
		abi.Header{}, abi.HelloRequest{}, abi.HelloReply{}, abi.ListReply{}, abi.DeviceEntry{}, abi.OpenDeviceRequest{},
		abi.OpenDeviceReply{}, abi.AsyncEvent{}, abi.DeviceAttr{}, abi.PortAttr{}, abi.GIDEntry{}, abi.HandleRequest{},
		abi.HandleReply{}, abi.RegMRRequest{}, abi.RegMRReply{}, abi.AHAttr{}, abi.CreateAHRequest{}, abi.CreateCQRequest{},
		abi.CreateCQReply{}, abi.QPCap{}, abi.CreateQPRequest{}, abi.CreateQPReply{}, abi.QPAttr{}, abi.ModifyQPRequest{},
		abi.QueryQPReply{}, abi.SnapshotReply{}, abi.StartCaptureRequest{}, abi.CaptureReply{},
		abi.SGE{}, abi.SendWQE{}, abi.BindWQE{}, abi.FlushWQE{}, abi.RecvWQE{}, abi.CQE{},
	} {
		if n, m := abi.Size(v), int(reflect.TypeOf(v).Size()); n != m {
			t.Errorf("%T has %d bytes in a message and %d in memory", v, n, m)
		}
	}
	if n := abi.Size(abi.Header{}); n != abi.HeaderSize {
		t.Errorf("HeaderSize is %d, the header has %d bytes", abi.HeaderSize, n)
	}
	for _, c := range []struct {
		slot any
		size int
	}{
		{abi.SGE{}, abi.SGESize}, {abi.SendWQE{}, abi.SendWQESize}, {abi.BindWQE{}, abi.SendWQESize},
		{abi.FlushWQE{}, abi.SendWQESize}, {abi.RecvWQE{}, abi.RecvWQESize}, {abi.CQE{}, abi.CQESize},
		{abi.AsyncEvent{}, abi.AsyncEventSize},
	} {
		if n := abi.Size(c.slot); n != c.size {
			t.Errorf("%T has %d bytes, its size constant is %d", c.slot, n, c.size)
		}
	}
}

func TestNamesInC(t *testing.T) {
	for in, want := range map[string]string{
		"MaxSendWR": "max_send_wr", "CQEWRID": "cqe_wr_id", "SendSGEs": "send_sges", "RegMRRequest": "reg_mr_request",
		"SQPSN": "sq_psn", "PKeyIndex": "pkey_index", "OpQueryGIDs": "op_query_gids", "LKey": "lkey", "QPN": "qp_num",
		"DestQPN": "dest_qp_num", "NodeGUID": "node_guid", "MaxMRSize": "max_mr_size", "CQArmNone": "cq_arm_none",
		"AHOrSRQ": "ah_or_srq", "SendWQE": "send_wqe", "MaxRawIPv6QP": "max_raw_ipv6_qp", "QPCap": "qp_cap", "MaxQPWR": "max_qp_wr", "MaxSRQSGE": "max_srq_sge", "AHAttr": "ah_attr", "FWVer": "fw_ver", "CreateAHRequest": "create_ah_request",
	} {
		if got := snake(in); got != want {
			t.Errorf("%s is %s in C instead of %s", in, got, want)
		}
	}
}
