// Package browsertest runs pages in a headless Chromium, for tests.
package browsertest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// A Browser is a headless Chromium with what its page did that it should not.
type Browser struct {
	context.Context
	may   string
	mu    sync.Mutex
	wrong []string
}

// Start starts Chromium, or skips the test. The page may load what begins with may, if that is not
// empty; it may not reach another network.
func Start(t testing.TB, may string) *Browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	flags := append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...)
	for _, f := range []string{"no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update", "disable-sync"} {
		flags = append(flags, chromedp.Flag(f, true))
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), append(flags, chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1400, 1000))...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	ctx, stop = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(stop)
	t.Cleanup(func() { // waits for the end of the browser, which writes to its directory
		if err := chromedp.Cancel(ctx); err != nil {
			t.Error(err)
		}
	})
	b := &Browser{Context: ctx, may: may}
	chromedp.ListenTarget(ctx, b.event)
	if err := chromedp.Run(ctx, network.Enable(), log.Enable(), runtime.Enable()); err != nil {
		t.Fatal(err)
	}
	return b
}

// event notes requests to a network, exceptions, and messages such as those of the content policy.
func (b *Browser) event(e any) {
	var what string
	switch e := e.(type) {
	case *network.EventRequestWillBeSent:
		if strings.HasPrefix(e.Request.URL, "file:") && e.Type == network.ResourceTypeDocument {
			return
		}
		if b.may != "" && strings.HasPrefix(e.Request.URL, b.may) {
			return
		}
		what = "request " + e.Request.URL
	case *runtime.EventExceptionThrown:
		what = "exception " + e.ExceptionDetails.Error()
	case *log.EventEntryAdded:
		what = "log " + e.Entry.Text
	case *runtime.EventConsoleAPICalled:
		what = fmt.Sprintf("console %s", e.Type)
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, what)
}

// Run runs the body of an asynchronous function in the page, and stores what it returns.
func (b *Browser) Run(t testing.TB, body string, result any) {
	t.Helper()
	await := func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
	if err := chromedp.Run(b, chromedp.Evaluate("(async () => {"+body+"})()", result, await)); err != nil {
		t.Fatal(err)
	}
}

// Check fails the test if the page did what it should not.
func (b *Browser) Check(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		t.Error(w)
	}
	b.wrong = nil
}

// Forgive forgets what the page did so far.
func (b *Browser) Forgive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = nil
}
