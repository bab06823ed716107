package metrics

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const monitoring = "../../packaging/monitoring"

// exported returns the names of all metrics of NICs, and of those without the process.
func exported(t *testing.T) (names []string) {
	w := httptest.NewRecorder()
	Handler(source{}, "1").ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(w.Body.String(), -1) {
		names = append(names, m[1])
	}
	if len(names) < 50 {
		t.Fatalf("the exporter has the metrics %v", names)
	}
	return names
}

// alertExpressions returns the expressions of the alert rules.
func alertExpressions(t *testing.T) (list []string) {
	text, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			list = append(list, r.Expr)
		}
	}
	return list
}

// dashboardExpressions returns the expressions of the panels, and the queries of the variables.
func dashboardExpressions(t *testing.T) (panels, variables []string) {
	text, err := os.ReadFile(filepath.Join(monitoring, "grafana.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels     []struct{ Targets []struct{ Expr string } }
		Templating struct {
			List []struct{ Query any }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			panels = append(panels, target.Expr)
		}
	}
	for _, v := range dashboard.Templating.List {
		variables = append(variables, fmt.Sprint(v.Query))
	}
	return panels, variables
}

// metricName matches the metrics of softroce in an expression.
var metricName = regexp.MustCompile(`\b(softroce|node_infiniband)_\w+`)

// The alert rules and the dashboard use metrics that the daemon exports.
func TestMonitoringUsesExportedMetrics(t *testing.T) {
	names := exported(t)
	alerts := alertExpressions(t)
	panels, variables := dashboardExpressions(t)
	if len(alerts) < 5 || len(panels) < 15 || len(variables) < 2 {
		t.Errorf("%d alerts, %d expressions of panels, %d variables", len(alerts), len(panels), len(variables))
	}
	for _, e := range slices.Concat(alerts, panels, variables) {
		used := metricName.FindAllString(e, -1)
		if len(used) == 0 && e != "prometheus" {
			t.Errorf("%s uses no metric", e)
		}
		for _, m := range used {
			if !slices.Contains(names, m) {
				t.Errorf("%s uses %s, which the exporter does not have", e, m)
			}
		}
	}
}

// promtool accepts the rules and the expressions of the dashboard, and runs the tests of the rules.
func TestPromtoolAcceptsMonitoring(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("check", "rules", "--lint=all", "--lint-fatal", filepath.Join(monitoring, "alerts.yaml"))
	run("test", "rules", filepath.Join(monitoring, "alerts_test.yaml"))
	// promtool checks expressions as those of rules. Grafana replaces its variables.
	panels, _ := dashboardExpressions(t)
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, e := range panels {
		rules = append(rules, rule{fmt.Sprintf("panel:%d", i), strings.ReplaceAll(e, "$__rate_interval", "1m")})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	run("check", "rules", "--lint=none", file)
}
