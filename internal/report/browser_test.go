package report

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"softroce/capture"
	"softroce/internal/browsertest"
	"softroce/internal/check"
	"softroce/internal/conversation"
	"softroce/packet"
)

// idle is the beginning of scripts that wait until the page has drawn what it was asked for.
const idle = `const idle = async () => {
	for (let quiet = 0; quiet < 3; quiet = softroceReport.isBusy() ? 0 : quiet + 1) await new Promise(requestAnimationFrame);
};`

// run runs the body of an asynchronous function in the page of a report.
func run(t testing.TB, b *browsertest.Browser, body string, result any) {
	t.Helper()
	b.Run(t, idle+body, result)
}

// open opens the page of a report.
func open(t *testing.T, b *browsertest.Browser, r *Report) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "page.html")
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, page.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Run(b, chromedp.Navigate("file://"+name)); err != nil {
		t.Fatal(err)
	}
}

// shown is what a page shows of all its connections.
type shown struct {
	Counts  map[string]int // of the legends, over all streams
	Packets []shownPacket  // as the diagrams have them
	Rungs   int            // rows of the ladders, those out of sight included
	Verdict string
}

type shownPacket struct {
	No     int    `json:"no"`
	PSN    uint32 `json:"psn"`
	Opcode string `json:"opcode_name"`
	Bytes  int    `json:"payload_len"`
}

const readShown = `
	const R = softroceReport, out = { Counts: {}, Packets: [], Rungs: 0, Verdict: document.querySelector("#verdict").textContent };
	for (const c of R.connections) {
		await R.open(c.index);
		await idle();
		out.Rungs += parseInt(document.querySelector("#shown").textContent.replace(/\D/g, ""));
		for (const b of document.querySelectorAll("#streams button")) {
			b.click();
			await idle();
			for (const l of document.querySelectorAll("#legend button")) {
				if (l.dataset.count !== (l.hidden ? "0" : l.textContent.match(/[\d\u202f]+$/)[0].replaceAll("\u202f", ""))) throw new Error("legend: " + l.textContent);
				out.Counts[l.dataset.series] = (out.Counts[l.dataset.series] || 0) + Number(l.dataset.count);
			}
		}
		await c.load();
		for (const p of c.chunks.values()) for (let i = 0; i < p.n; i++) {
			const psn = (c.meta.streams[p.stream[i]].psn + p.seq[i]) % 0x1000000;
			out.Packets.push({ no: p.no[i], psn, opcode_name: R.meta.opcodes[p.opcode[i]], payload_len: p.bytes[i] });
		}
	}
	return out;`

// TestPageShowsNumbersOfCheckAndDecode compares what the browser has drawn.
func TestPageShowsNumbersOfCheckAndDecode(t *testing.T) {
	b := browsertest.Start(t, "")
	big := filepath.Join(t.TempDir(), "big.pcapng")
	writeLossy(t, big, 20000)
	for _, file := range []string{"loss-write-req.pcap", "loss-pp-rc.pcap", "pp-ud.pcap", "vp-all-ops.pcap", big} {
		if !filepath.IsAbs(file) {
			file = filepath.Join("../../pcap-fixtures", file)
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			r, err := Read(opener(file))
			if err != nil {
				t.Fatal(err)
			}
			open(t, b, r)
			var got shown
			run(t, b, readShown, &got)
			b.Check(t)
			compare(t, file, &got)
		})
	}
}

// compare compares what a page shows with what check and decode --json print.
func compare(t testing.TB, file string, got *shown) {
	t.Helper()
	judged, err := check.File(file)
	if err != nil {
		t.Fatal(err)
	}
	again := 0
	for _, n := range judged.SentAgain {
		again += n.Packets
	}
	// decode sees one packet at a time, and guesses where check knows; the page has its remarks.
	again += map[string]int{"dup-write.pcap": 2}[filepath.Base(file)]
	decoded := decode(t, file)
	fatal := 0
	for _, p := range got.Packets {
		if p != decoded[p.No].shownPacket {
			t.Fatalf("the diagram has %+v, decode %+v", p, decoded[p.No].shownPacket)
		}
		if decoded[p.No].isFatal() {
			fatal++
		}
	}
	for series, want := range map[string]int{
		"again": again, "nak": judged.NAKs + fatal, "rnr": judged.RNRNAKs, "ce": judged.CEMarks, "cnp": judged.CNPs, "violation": len(judged.Violations),
	} {
		if got.Counts[series] != want {
			t.Errorf("the diagrams show %d of %s, check has %d", got.Counts[series], series, want)
		}
	}
	if !strings.Contains(strings.ToLower(got.Verdict), strings.ToLower(judged.Verdict)) {
		t.Errorf("the page says %q, check %q", got.Verdict, judged.Verdict)
	}
	if want := len(decoded) - judged.Views; got.Rungs != want || len(got.Packets) != want || want == 0 {
		t.Errorf("%d rungs, %d packets, decode has %d without those captured again", got.Rungs, len(got.Packets), want)
	}
}

// A decodedPacket is what decode --json prints of a packet.
type decodedPacket struct {
	shownPacket
	AETH *struct{ Syndrome packet.Syndrome }
}

func (p *decodedPacket) isFatal() bool { return p.AETH != nil && conversation.IsFatal(p.AETH.Syndrome) }

// decode returns what decode --json prints of RoCEv2 packets, by their numbers.
func decode(t testing.TB, file string) map[int]*decodedPacket {
	t.Helper()
	r, err := capture.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	from, to := io.Pipe()
	go func() {
		_, err := capture.Decode(to, r, capture.DecodeOptions{JSON: true})
		to.CloseWithError(err)
	}()
	packets := map[int]*decodedPacket{}
	for lines := json.NewDecoder(from); ; {
		var p decodedPacket
		if err := lines.Decode(&p); err == io.EOF {
			return packets
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Opcode != "" {
			packets[p.No] = &p
		}
	}
}

// lossyReport reads a capture that writeLossy has written.
func lossyReport(t *testing.T, n int) *Report {
	t.Helper()
	file := filepath.Join(t.TempDir(), "big.pcapng")
	writeLossy(t, file, n)
	r, err := Read(opener(file))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// writeLossy writes a capture of about n packets: SENDs, an ACK for every other one, and a
// NAK for each thousandth, which is sent again.
func writeLossy(t testing.TB, file string, n int) {
	t.Helper()
	w, err := capture.Create(file, "rdma0")
	if err != nil {
		t.Fatal(err)
	}
	a := packet.Addressing{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 50000, DstPort: 4791, HopLimit: 64}
	back := a
	back.Src, back.Dst = a.Dst, a.Src
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var tx packet.Tx
	payload := make([]byte, 64)
	frame := func(a *packet.Addressing, h packet.Header, payload ...[]byte) {
		h.PKey = packet.DefaultPKey
		at = at.Add(700 * time.Nanosecond)
		a.ID++
		tx.Set(&h, payload...)
		if err := w.WriteFrame(at.UnixNano(), 0, packet.AppendFrame(nil, a, &tx)); err != nil {
			t.Fatal(err)
		}
	}
	send := func(psn int) {
		frame(&a, packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(packet.SendOnly), DestQP: 18, PSN: uint32(psn), AckReq: psn%2 == 1}}, payload)
	}
	reply := func(psn int, s packet.Syndrome) {
		frame(&back, packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(packet.Acknowledge), DestQP: 17, PSN: uint32(psn)}, AETH: packet.AETH{Syndrome: s, MSN: uint32(psn)}})
	}
	const credits = 0x0a // 32
	for psn := 0; psn < n*2/3; psn++ {
		send(psn)
		if psn%1000 == 999 { // the one before is lost
			reply(psn-1, packet.NAKSequence)
			send(psn - 1)
			send(psn)
		}
		if psn%2 == 1 {
			frame(&back, packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(packet.Acknowledge), DestQP: 17, PSN: uint32(psn)}, AETH: packet.AETH{Syndrome: credits, MSN: uint32(psn + 1)}})
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestHostileCaptureInjectsNothing puts elements and scripts into each text that a capture can
// hold.
func TestHostileCaptureInjectsNothing(t *testing.T) {
	b := browsertest.Start(t, "")
	const hostile = `</script><script>globalThis.injected = 1</script><img src=http://192.0.2.9/x onerror="injected = 1"><b id=injected>`
	name := filepath.Join(t.TempDir(), "<img src=x onerror='injected=1'>.pcapng")
	w, err := capture.Create(name, hostile)
	if err != nil {
		t.Fatal(err)
	}
	from, err := capture.Open("../../pcap-fixtures/loss-write-req.pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	for rec, err := range from.Records() {
		if err != nil {
			t.Fatal(err)
		}
		rec.Comments = []string{hostile}
		if rec.No == 3 {
			rec.Data[len(rec.Data)-20] ^= 1 // a violation
		}
		if err := w.WriteRecord(0, rec); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteNote(capture.Note{Time: rec.Time, Text: hostile, NIC: hostile, Program: hostile}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Read(opener(name))
	if err != nil {
		t.Fatal(err)
	}
	if r.Check.Total == 0 || len(r.Notes) == 0 || len(r.Comments) == 0 {
		t.Fatalf("%d violations, %d notes, %d comments", r.Check.Total, len(r.Notes), len(r.Comments))
	}
	open(t, b, r)
	var got struct {
		Injected       bool
		Elements       int
		Remark, Packet string
	}
	run(t, b, `
		await idle();
		document.querySelector("button.goto").click();
		await new Promise(r => setTimeout(r, 100));
		await idle();
		return { Injected: typeof globalThis.injected === "number", Elements: document.querySelectorAll("img, b#injected").length,
			Remark: document.querySelector(".rung[aria-selected=true] .remark").textContent, Packet: document.querySelector("#packet").textContent };`, &got)
	b.Check(t)
	if got.Injected || got.Elements != 0 || !strings.Contains(got.Remark, hostile) || !strings.Contains(got.Packet, hostile) {
		t.Errorf("%+v", got)
	}
}

// TestKeysZoomAndSelect uses the page without a mouse.
func TestKeysZoomAndSelect(t *testing.T) {
	b := browsertest.Start(t, "")
	r := lossyReport(t, 20000)
	open(t, b, r)
	var got struct {
		Whole, Zoomed, Back float64
		Blocks              bool
		Points              int
		Problem             string
		Down                int
	}
	run(t, b, `
		const R = softroceReport, key = (id, key) => document.getElementById(id).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
		const width = () => R.view.t1 - R.view.t0, out = {};
		await idle();
		out.Whole = width(); out.Blocks = R.view.shown.blocks !== null;
		for (let i = 0; i < 3; i++) { key("psn", "+"); await idle(); }
		out.Zoomed = width();
		key("psn", "n");
		for (let i = 0; i < 200 && R.view.selected < 0; i++) await idle();
		await idle();
		out.Points = R.view.shown.points.length / 2;
		out.Problem = document.querySelector(".rung[aria-selected=true] .arrow").textContent;
		const before = R.view.selected;
		key("ladder", "ArrowDown");
		await idle();
		out.Down = R.view.selected - before;
		key("psn", "0");
		await idle();
		out.Back = width();
		return out;`, &got)
	b.Check(t)
	if !got.Blocks || got.Zoomed >= got.Whole/7 || got.Back != got.Whole || got.Down != 1 || got.Points == 0 || got.Points > 500 ||
		!strings.Contains(got.Problem, "NAK") {
		t.Errorf("%+v", got)
	}
}

// TestManyPacketsAreDrawnAsFewAre compares what the diagrams show of levels of detail with what is
// known of the packets: payload at an even rate, and 32 credits in each acknowledgement.
func TestManyPacketsAreDrawnAsFewAre(t *testing.T) {
	b := browsertest.Start(t, "")
	r := lossyReport(t, 100000)
	open(t, b, r)
	var got struct {
		Blocks            bool
		Bytes, Slow, Fast float64
		Some, All, Wrong  int
		Far               string
		Limit, Drawn      float64
		Arrow, Field      string
	}
	run(t, b, `
		const R = softroceReport, v = R.view, c = v.conn, out = {}, messages = c.meta.streams[0].requests;
		await idle();
		out.Blocks = v.shown.blocks !== null;
		const [at, rate] = v.rates, step = at[1] - at[0];
		out.Bytes = rate.reduce((a, r) => a + r * step / 8, 0);
		const inner = rate.slice(5, -5);
		out.Slow = Math.min(...inner); out.Fast = Math.max(...inner);
		const acks = new Map();
		await c.load();
		for (const p of c.chunks.values()) for (let i = 0; i < p.n; i++) if (p.cls[i] === 3) acks.set(p.at[i], p.seq[i]);
		const wrong = edges => edges.filter(([at, seq]) => seq !== acks.get(at) + 1 + 32 && seq !== -1).length;
		out.Some = v.edges.length; out.Wrong = wrong(v.edges);
		const times = [...acks.keys()], mid = times[Math.floor(times.length * 3 / 4)];
		const limit = () => v.edges.filter(([at]) => at <= mid).at(-1)[1];
		R.zoom(mid - 20000, mid + 20000);
		await idle();
		out.All = v.edges.length; out.Wrong += wrong(v.edges);
		out.Limit = limit() - acks.get(mid);
		out.Drawn = v.psns[1] - acks.get(mid);
		R.zoom(mid - 100, mid + 100);
		await idle();
		out.Far = document.querySelector("#legend").lastChild.textContent;
		const row = document.querySelector(".rung");
		out.Arrow = row.querySelector(".arrow").textContent;
		row.click();
		await idle();
		out.Field = [...document.querySelectorAll("#packet .field")].map(f => f.textContent).find(f => f.startsWith("aeth.syndrome"));
		return out;`, &got)
	b.Check(t)
	total := 0.0
	for _, s := range r.Connections[0].Streams {
		total += float64(s.Bytes)
	}
	if again := float64(64 * r.Connections[0].Streams[0].SentAgain); !got.Blocks || math.Abs(got.Bytes-total-again) > 1e-6*total || got.Fast > 1.1*got.Slow {
		t.Errorf("throughput: %+v, want %v bytes at an even rate", got, total+again)
	}
	if got.Some > 2*overviewSize || got.Some < overviewSize/2 || got.All < chunkEdges || got.Wrong != 0 || got.Limit != 33 || got.Drawn < 33 || !strings.Contains(got.Far, "above") {
		t.Errorf("credits: %+v", got)
	}
	if !strings.Contains(got.Arrow, "ACK(credits 32)  msn ") || got.Field != "aeth.syndrome 0x0a(ACK(credits 32))" {
		t.Errorf("packet: %+v", got)
	}
}

// TestPrint prints the page of many packets, on a few sheets.
func TestPrint(t *testing.T) {
	b := browsertest.Start(t, "")
	r := lossyReport(t, 20000)
	open(t, b, r)
	run(t, b, `await idle(); document.getElementById("ladder").scrollTop = 30000; await new Promise(r => setTimeout(r, 100)); await idle(); return 0;`, new(int))
	var pdf []byte
	if err := chromedp.Run(b, chromedp.ActionFunc(func(ctx context.Context) (err error) {
		pdf, _, err = cdppage.PrintToPDF().Do(ctx)
		return err
	})); err != nil {
		t.Fatal(err)
	}
	if sheets := regexp.MustCompile(`/Type /Page\b[^s]`).FindAll(pdf, -1); len(sheets) < 2 || len(sheets) > 10 {
		t.Errorf("%d sheets", len(sheets))
	}
	// The same layout, where scripts see it: A4 without margins of 1 cm.
	run(t, b, `dispatchEvent(new Event("beforeprint")); return 0;`, new(int))
	if err := chromedp.Run(b, chromedp.EmulateViewport(718, 1000), emulation.SetEmulatedMedia().WithMedia("print")); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Table, Page, Rows, Height, After, Top int
		First, Shown, Limit                   string
	}
	run(t, b, `
		await idle();
		const $ = s => document.querySelector(s), out = { Table: $("#connections").scrollWidth, Page: innerWidth };
		out.Rows = document.querySelectorAll(".rung").length;
		out.First = $(".rung .no").textContent;
		out.Height = $("#ladder").offsetHeight;
		out.Shown = $("#shown").innerText;
		out.Limit = $("#legend").innerText;
		return out;`, &got)
	if err := chromedp.Run(b, emulation.SetEmulatedMedia().WithMedia("")); err != nil {
		t.Fatal(err)
	}
	run(t, b, `
		dispatchEvent(new Event("afterprint"));
		await idle();
		return { After: document.querySelector("#rows").offsetHeight, Top: document.querySelector("#ladder").scrollTop };`, &got)
	b.Check(t)
	if got.Table > got.Page || got.Rows != 200 || got.First != "999" || got.Height > 200*30+10 || got.After != 20038*30 || got.Top != 30000 ||
		!strings.Contains(got.Shown, "Printed are 200, from number 999 on.") || !strings.Contains(got.Limit, "limit of the credits") {
		t.Errorf("%+v", got)
	}
}

// TestDiagramIsDrawnWhileThePageLoads serves a page without its last part, the text of the packets.
func TestDiagramIsDrawnWhileThePageLoads(t *testing.T) {
	r := lossyReport(t, 20000)
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	before := r.collect()
	first, _, ok := strings.Cut(page.String(), fmt.Sprintf(`<script type="text/plain" id="b%d">`, len(before.levels)+len(before.points)+len(before.edges)))
	if !ok {
		t.Fatal("the page has no text")
	}
	goOn := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, first)
		w.(http.Flusher).Flush()
		<-goOn
		io.WriteString(w, page.String()[len(first):])
	}))
	t.Cleanup(server.Close)
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	b := browsertest.Start(t, server.URL)
	if err := chromedp.Run(b, chromedp.ActionFunc(func(ctx context.Context) error { // Navigate would wait for the whole page
		_, _, _, _, err := cdppage.Navigate(server.URL).Do(ctx)
		return err
	})); err != nil {
		t.Fatal(err)
	}
	var got struct {
		State string
		Drawn bool
		Rungs int
	}
	b.Run(t, `
		while (!globalThis.softroceReport?.view.shown?.blocks?.length) await new Promise(r => setTimeout(r, 20));
		const c = document.querySelector("#psn canvas");
		return { State: document.readyState, Drawn: c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(v => v !== 0) };`, &got)
	if got.State != "loading" || !got.Drawn {
		t.Errorf("%+v", got)
	}
	release()
	run(t, b, `await idle(); return { State: document.readyState, Rungs: document.querySelectorAll(".rung .time").length };`, &got)
	if got.Rungs == 0 {
		t.Errorf("no packet is listed: %+v", got)
	}
	b.Check(t)
}
