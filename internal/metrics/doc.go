// Package metrics names what softroce's NICs count, and hands it to Prometheus.
//
// Counters that the node exporter also knows of hardware have its names
// (node_infiniband_…) and labels, so that dashboards made for NICs show these too. What
// hardware does not tell, or the node exporter does not read, has names that begin with
// softroce_.
package metrics
