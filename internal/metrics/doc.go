// Package metrics has the names of all counters of softroce's NICs, and exports them to Prometheus.
//
// Counters that the node exporter also reads from hardware have its names (node_infiniband_…) and
// labels, so that dashboards for hardware show them too. The names of other metrics begin with
// softroce_.
package metrics
