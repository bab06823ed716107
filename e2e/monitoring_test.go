package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
)

var graph = flag.String("graph", "", "`file` to write the picture of docs/use/monitoring.md to")

// query asks Prometheus and returns the time series of the answer.
func query(t *testing.T, server, api string) (series []json.RawMessage) {
	t.Helper()
	r, err := http.Get(server + api)
	if err != nil {
		return nil // it has not started yet
	}
	defer r.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result, Groups []json.RawMessage }
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Error != "" {
		if r.StatusCode == http.StatusServiceUnavailable {
			return nil
		}
		t.Fatalf("%s: %s: %v %s", api, r.Status, err, answer.Error)
	}
	return append(answer.Data.Result, answer.Data.Groups...)
}

// TestDashboardHasData scrapes a daemon with Debian's Prometheus, which has the alert rules, until
// every expression of the dashboard yields data, and draws the panels.
//
//	go test ./e2e -run DashboardHasData -graph ../docs/use/monitoring.png
func TestDashboardHasData(t *testing.T) {
	for _, program := range []string{"prometheus", "chromium"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
	dir := harness.ShortDir(t)
	socket, metrics, server := filepath.Join(dir, "s"), fmt.Sprint("127.0.0.1:", harness.FreePort()), fmt.Sprint("127.0.0.1:", harness.FreePort())
	d := harness.StartDaemon(t, nil, "--socket", socket, "--metrics", metrics)
	harness.OpenNIC(t, d, socket).Close()
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	bin := harness.Binary(t)
	harness.RunCommand(t, bin, "fault", "add", "--socket", socket, "drop receive kind write chance 1%")
	harness.RunCommand(t, bin, "fault", "add", "--socket", socket, "mark send kind write chance 1%")
	rules, err := filepath.Abs("../packaging/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `global: {scrape_interval: 500ms, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs: [{job_name: softroce, static_configs: [{targets: ["%s"]}]}]
`, rules, metrics), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, job := range []*harness.Job{
		harness.StartJob(t, exec.CommandContext(ctx, bin, "perf", "write", "--socket", socket, "--size", "20000", "--depth", "4", "--latency", "0", "--duration", "1h")),
		harness.StartJob(t, exec.CommandContext(ctx, "prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", server)),
	} {
		defer func() {
			cancel()
			if out, _ := job.Wait(); t.Failed() {
				t.Log(out)
			}
		}()
	}

	server = "http://" + server
	variables := strings.NewReplacer("$instance", ".*", "$device", ".*", "$__rate_interval", "10s")
	expressions := dashboardExpressions(t)
	for _, e := range expressions {
		api := "/api/v1/query?query=" + url.QueryEscape(variables.Replace(e))
		for len(query(t, server, api)) == 0 {
			if ctx.Err() != nil {
				t.Fatalf("no data for %s", e)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	if n := len(query(t, server, "/api/v1/rules")); n != 1 {
		t.Errorf("%d groups of alert rules are loaded, want 1", n)
	}
	picture := filepath.Join(dir, "dashboard.png")
	if *graph != "" {
		picture = *graph
		time.Sleep(time.Minute) // so that there is something to see
	}
	drawDashboard(ctx, t, server, variables, picture)
}
