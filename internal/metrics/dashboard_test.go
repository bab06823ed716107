package metrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// conforms verifies that a JSON object has all fields that Grafana's schema requires, and no others
// than the schema has.
func conforms(t *testing.T, object []byte, schema interface{ UnmarshalJSONStrict([]byte) error }) {
	t.Helper()
	if err := schema.UnmarshalJSONStrict(object); err != nil && err.Error() != "" { // an empty list of errors is not nil
		t.Errorf("%v\n%s", err, object)
	}
}

// The dashboard conforms to Grafana's schemas of dashboards, of panels with time series and of
// queries of Prometheus.
func TestDashboardConformsToSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(monitoring, "grafana.json"))
	if err != nil {
		t.Fatal(err)
	}
	cog.NewRuntime().RegisterPanelcfgVariant(timeseries.VariantConfig())
	//lint:ignore SA1019 the schema that follows it is for another format of dashboards
	conforms(t, text, new(dashboard.Dashboard))

	// The schema of a dashboard permits queries of any kind.
	var d struct {
		Panels []struct {
			Type    string
			Targets []json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for i, p := range d.Panels {
		if p.Type != "timeseries" {
			t.Errorf("panel %d is a %q, whose schema is not known here", i, p.Type)
		}
		for _, query := range p.Targets {
			conforms(t, query, new(prometheus.Dataquery))
		}
	}
}
